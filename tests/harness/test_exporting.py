"""Runs become files of other tools; hostile cells stay text."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.interchange import import_file
from opgauge.harness.interchange.exporting import as_bencher, as_github, write_parquet
from opgauge.harness.report.export import Quoted, as_csv, records
from opgauge.harness.result.result import Environment, Result, Status
from opgauge.harness.store import Store
from tests.harness import foreign_files
from tests.harness.test_interchange import DATA, write
from tests.harness.test_submission import a_result


@pytest.fixture
def flat(tmp_path: Path) -> list[dict[str, Any]]:
    """Records of a run: two implementations, two blocks, one failure."""
    with Store.open(f"sqlite:///{tmp_path}/flat.db") as store:
        run = store.begin_run(Environment({}, {"commit": "abc"}))
        for result in (a_result(), a_result(block=1), a_result("baseline")):
            store.add_result(run, result)
        failed = Result(a_result("broken").trial, Status.ERROR, "=cmd|' /C calc'!A0")
        store.add_result(run, failed)
        store.finish_run(run)
        return records(store.find_run("last"), store.results(run), {})


def test_bencher_metric_format(flat: list[dict[str, Any]]) -> None:
    """Names to measures to numbers: latency in nanoseconds with bounds; failures are left out."""
    found = json.loads(as_bencher(flat))
    assert set(found) == {"p_norm/rows/optimized/cpu", "p_norm/rows/baseline/cpu"}
    for measures in found.values():
        assert measures["latency"]["value"] == 11.0
        assert measures["latency"]["lower_value"] <= 11.0 <= measures["latency"]["upper_value"]
        assert all(isinstance(number, float) for measure in measures.values() for number in measure.values())


def test_what_is_wrong_is_no_figure(flat: list[dict[str, Any]]) -> None:
    """A time that was measured of a wrong result goes to no other tool."""
    wrong = [{**record, "status": "wrong"} for record in flat]
    assert json.loads(as_bencher(wrong)) == {}
    assert json.loads(as_github(wrong)) == []


def test_github_action_benchmark(flat: list[dict[str, Any]]) -> None:
    """A list of names with unit, value and range."""
    found = json.loads(as_github(flat))
    assert [item["name"] for item in found] == ["p_norm/rows/optimized/cpu", "p_norm/rows/baseline/cpu"]
    assert all((item["unit"], item["value"]) == ("ns", 11.0) for item in found)
    assert found[1]["range"] == "± 1"
    assert found[0]["extra"].startswith("samples: 6\n")


def test_parquet(flat: list[dict[str, Any]], tmp_path: Path) -> None:
    """Every record is a row of typed columns: infinities are numbers there, structures are JSON."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    path = tmp_path / "run.parquet"
    write_parquet(flat, path)
    table = pq.read_table(path)
    assert table.num_rows == 4
    rows = table.to_pylist()
    assert [row["median_ns"] for row in rows] == [11.0, 11.0, 11.0, None]
    assert rows[0]["max_rel_error"] == math.inf
    assert json.loads(rows[0]["params"]) == {"porder": "inf"}
    assert str(table.schema.field("samples").type) == "int64"
    write_parquet([], tmp_path / "empty.parquet")


@pytest.mark.parametrize(
    "path",
    sorted(path for path in DATA.glob("*/*.json") if path.parent.name != "trust"),
    ids=lambda path: f"{path.parent.name} {path.stem}",
)
def test_committed_runs_are_written_in_every_format(path: Path, tmp_path: Path) -> None:
    """Runs of real devices, footprints and all: in Parquet whatever is a number stands in a column of numbers."""
    import pyarrow.parquet as pq

    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        run = store.find_run(import_file(path, store))
        found = records(run, store.results(run.id), store.ceilings(run.id))
    write_parquet(found, tmp_path / "run.parquet")
    table = pq.read_table(tmp_path / "run.parquet")
    for name in table.column_names:
        numbers = any(type(record[name]) in {int, float} for record in found)
        assert (str(table.schema.field(name).type) in {"int64", "double"}) >= numbers, name
    assert table.column("median_ns").to_pylist() == [record["median_ns"] for record in found]
    assert len(list(csv.reader(io.StringIO(as_csv(found))))) == len(found) + 1
    measured = {
        "/".join(str(one[key]) for key in ("op", "case", "implementation", "device"))
        for one in found
        if one["median_ns"] and one["status"] == "ok"
    }
    assert set(json.loads(as_bencher(found))) == {one["name"] for one in json.loads(as_github(found))} == measured


@settings(max_examples=50)
@given(st.text(st.sampled_from("=+-@\t\r\n,\"'|＝＋－＠a1 "), max_size=8))
def test_no_cell_is_a_formula(text: str) -> None:
    """Whatever text a cell holds, it begins with nothing that a spreadsheet computes, and reading gives it back."""
    (row,) = csv.DictReader(io.StringIO(as_csv([{"name": text, "value": -1.5}])))
    assert not row["name"].startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"))
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    assert row["name"] in {plain, "'" + plain}
    assert row["value"] == "-1.5"


@settings(max_examples=50)
@given(st.lists(st.text(st.sampled_from("=-\r\n,\"'|＝a1 "), max_size=6), min_size=2, max_size=4))
def test_cells_in_quotes_are_those_of_a_table(texts: list[str]) -> None:
    """Put together one by one they are the line that a writer of CSV makes of them."""
    cells = Quoted()
    (line,) = as_csv([{str(place): text for place, text in enumerate(texts)}]).split("\n", 1)[1:]
    assert ",".join(cells[text] for text in texts) + "\n" == line


def test_exports_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`import` takes a file of another tool, `export` writes every format; Parquet only to a file."""
    from typer.testing import CliRunner

    from opgauge.harness.cli import app

    monkeypatch.setenv("OPGAUGE_DB", f"sqlite:///{tmp_path}/x.db")
    path = write(tmp_path, foreign_files.google_benchmark())
    runner = CliRunner()

    def run(*arguments: str, code: int = 0) -> str:
        done = runner.invoke(app, list(arguments))
        assert done.exit_code == code, done.output
        return done.stdout

    assert "run " in run("import", str(path))
    readers: dict[str, Callable[[str], Any]] = {"json": json.loads, "bencher": json.loads, "github": json.loads}
    for form in ("json", "csv", "bencher", "github"):
        readers.get(form, str)(run("export", "--format", form))
    run("export", "--format", "parquet", code=2)
    run("export", "--format", "parquet", "--output", str(tmp_path / "x.parquet"))
    assert (tmp_path / "x.parquet").read_bytes().startswith(b"PAR1")
    run("export", "--format", "csv", "--samples", code=2)
