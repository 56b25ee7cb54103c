"""`opgauge export`: export of a stored run to a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from opgauge.harness.cli.options import Database, database_url
from opgauge.harness.counting import counted


class Format(StrEnum):
    """Formats of an exported run."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    BENCHER = "bencher"
    GITHUB = "github"


def export(
    run: Annotated[
        str | None, typer.Option("--run", help="A run's id, its beginning, or `last`; the latest if none.")
    ] = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="json: a list of objects; csv, parquet: the same, flat; bencher: Bencher Metric Format; "
            "github: for github-action-benchmark (customSmallerIsBetter).",
        ),
    ] = Format.JSON,
    samples: Annotated[
        bool, typer.Option("--samples", help="The whole run with raw samples, for `opgauge import`; JSON only.")
    ] = False,
    self_tests: Annotated[
        bool, typer.Option("--self-tests", help="Stored self-tests instead of a run, for `opgauge import`; JSON only.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output if none.")] = None,
    db: Database = None,
) -> None:
    """Write a run's results: a record per result.

    Example: opgauge export --format csv --output run.csv
    """
    from opgauge.harness.report.export import as_json, records, whole_run
    from opgauge.harness.store import Store

    if (samples or self_tests) and form is not Format.JSON:
        raise typer.BadParameter("--samples and --self-tests write JSON only")
    if form is Format.PARQUET and output is None:
        raise typer.BadParameter("--format parquet needs --output: it is not text")
    with Store.open(database_url(db)) as store:
        if self_tests:
            from opgauge.harness.interchange.self_test_file import self_test_file
            from opgauge.harness.store.self_tests import KINDS, list_self_tests

            tests = [one for kind in KINDS for one in list_self_tests(store.engine, kind)]
            _write(as_json(self_test_file(tests)), output, f"{len(tests)} self-tests")
            return
        found = store.find_run(run)
        results, reached = store.results(found.id, samples=samples), store.ceilings(found.id)
    flat = [] if samples else records(found, results, reached)
    if output is not None and form is Format.PARQUET:
        from opgauge.harness.interchange.exporting import write_parquet

        write_parquet(flat, output)
        typer.echo(f"{counted(len(results), 'result')} in {output}", err=True)
    else:
        text = as_json(whole_run(found, results, reached)) if samples else _text(form, flat)
        _write(text, output, counted(len(results), "result"))


def _write(text: str, output: Path | None, what: str) -> None:
    """Write to a file, and say to standard error what is there now; to standard output if there is no file."""
    if output is None:
        typer.echo(text.rstrip("\n"))
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"{what} in {output}", err=True)


def _text(form: Format, flat: list[dict[str, Any]]) -> str:
    from opgauge.harness.interchange.exporting import as_bencher, as_github
    from opgauge.harness.report.export import as_csv, as_json

    if form is Format.CSV:
        return as_csv(flat)
    if form is Format.BENCHER:
        return as_bencher(flat)
    return as_github(flat) if form is Format.GITHUB else as_json(flat)
