"""Reading stored results as a table of pandas, Polars or Arrow: `opgauge.results`."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Literal

from opgauge.harness.report.export import records
from opgauge.harness.store import Store

Library = Literal["pandas", "polars", "arrow", "records"]
MOST_RUNS = 100_000
"""Most runs that are read."""


def results(
    db: str,
    *,
    op: str | None = None,
    implementation: str | None = None,
    since: datetime | None = None,
    library: Library = "pandas",
) -> Any:
    """A row per stored result, with the columns of `opgauge export`, oldest run first.

    db: URL, or the path of an SQLite file. op, implementation: keep results that have them. since: of runs that began
    then or later; without a time zone it is UTC. library: what makes the table, `records` for a list of dicts. Raises
    StoreError, and ImportError where the library is not installed.
    """
    limit = since.replace(tzinfo=since.tzinfo or UTC) if since is not None else None
    found: list[dict[str, Any]] = []
    with Store.open(db if "://" in db else f"sqlite:///{db}") as store:
        for run in reversed(store.runs(MOST_RUNS)):
            if limit is not None and run.started.replace(tzinfo=run.started.tzinfo or UTC) < limit:
                continue
            kept = [
                result
                for result in store.results(run.id)
                if op in {None, result.trial.case.op} and implementation in {None, result.trial.implementation}
            ]
            found += records(run, kept, store.ceilings(run.id))
    match library:
        case "records":
            return found
        case "pandas":
            return import_module("pandas").DataFrame.from_records(found)
        case "polars":
            return import_module("polars").from_dicts(found, infer_schema_length=None)
        case "arrow":
            return import_module("pyarrow").Table.from_pylist(found)
