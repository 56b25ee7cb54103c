"""The command line at a terminal and in a log: widths, encodings, progress, periods, sorting, deleting."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from rich.console import Console
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from opgauge.harness.cli.period import period_start
from opgauge.harness.errors import FilterError
from opgauge.harness.report import render
from opgauge.harness.report.columns import Column, fitting, needed, print_columns
from opgauge.harness.report.sorting import sort
from opgauge.harness.result.result import Environment, Result, Status
from opgauge.harness.result.summary import rows
from opgauge.harness.run.duration import duration_text, expect
from opgauge.harness.run.progress import Progress, ProgressStyle
from opgauge.harness.store import Store
from opgauge.harness.store.deleting import delete_runs
from opgauge.harness.store.tables import CaseRow, ResultRow, SampleRow
from tests.commandline import Done, run_here
from tests.harness.test_summary import CEILINGS, a_result

ROOT = Path(__file__).parents[2]
LONG = "rows-of-a-model[float32,porder=2.5,axis=(0,1)]"
NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)


def some_results() -> list[Result]:
    """Two cases by four implementations; a long name, and one that fails."""
    times = {"baseline": 4e6, "optimized": 1e6, "torch": 2e6, "torch_compile": 3e6}
    found = [a_result(name, time, name=LONG) for name, time in times.items()]
    return [*found, a_result("optimized", 5e6, name="b"), a_result("torch", 0.0, name="b", status=Status.TIMEOUT)]


def shown(results: list[Result], width: int) -> str:
    """The tables of a run at a width."""
    out = io.StringIO()
    render.show(rows(results), results, CEILINGS, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 140, 400])
def test_names_and_statuses_are_never_left_out(width: int) -> None:
    """At any width every character of name and status is there, no line is longer, and what is left out is named."""
    text = shown(some_results(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    letters = "".join(line[:60] for line in text.split("not ok")[0].split())
    for part in (*"porder=2.5,axis", *"torch", "ok"):
        assert part in letters
    assert ("left out" in text) is (width <= 100)
    if width >= 60:
        assert "1 ms" in text
    else:
        assert "optimized" in text


def test_a_name_folds_before_the_status_goes() -> None:
    """At 60 columns a name of 46 characters takes several lines, and joins to itself."""
    lines = [line for line in shown(some_results(), 60).split("left out")[0].splitlines() if line.strip()]
    width = lines[0].index("dtype")
    column = "".join(line[:width].strip() for line in lines[2:])
    assert LONG.replace("[float32,", "[") in column
    assert all("ok" in line or "✗" in line for line in lines[2:] if "ms" in line)


def test_columns_are_left_out_by_rank() -> None:
    """The largest rank goes first; those of rank 0 stay even where they do not fit."""
    columns = [Column(name, ["x" * 10], rank) for name, rank in (("a", 0), ("b", 2), ("c", 1), ("d", 0))]
    assert needed(columns) == 40 + 9 + 2
    for width, kept in ((51, "abcd"), (50, "acd"), (38, "acd"), (37, "ad"), (5, "ad")):
        assert "".join(column.title for column in fitting(columns, width)[0]) == kept
    out = io.StringIO()
    print_columns(columns, Console(file=out, width=38))
    assert "left out at 38 columns: b" in out.getvalue()


@pytest.mark.parametrize(
    "name", ["[bold]x[/bold]", "a, b", 'say "x"', "x[float64]", "x[float32]y", "[float32]", "back\\", ":smile:", "a]b["]
)
def test_any_name_is_shown_as_it_is(name: str) -> None:
    """Brackets, commas, quotes and markup stand for themselves; only a sweep's own dtype is left out."""
    assert f"sign · {name}" in shown([a_result("optimized", 1e6, name=name)], 140)


def test_the_dtype_of_a_sweep_has_its_own_column() -> None:
    """It is left out of the name: alone, and as the first of several."""
    assert "sign · x " in shown([a_result("optimized", 1e6, name="x[float32]")], 140)
    assert "sign · x[axis=0] " in shown([a_result("optimized", 1e6, name="x[float32,axis=0]")], 140)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("case", ["b", LONG]),
        ("optimized", [LONG, "b"]),
        ("torch", [LONG, "b"]),
        ("status", ["b", LONG]),
        ("run", [LONG, "b"]),
    ],
)
def test_rows_are_sorted_by_any_column(order: str, expected: list[str]) -> None:
    """Ascending, without a value last; reversed, still last."""
    found = rows(some_results())
    assert [row.case for row in sort(found, order, CEILINGS)] == expected
    turned = [row.case for row in sort(found, order, CEILINGS, reverse=True)]
    assert turned == (expected if order == "torch" else expected[::-1])


def test_every_title_is_a_column_to_sort_by() -> None:
    """Each column of both tables is an order; an unknown one is refused with the nearest."""
    found = rows(some_results())
    for column in (*render.comparison(found, CEILINGS), *render.against_peers(found, CEILINGS)):
        if column.title and column.title != "op · case":
            sort(found, column.title, CEILINGS)
    with pytest.raises(FilterError, match="did you mean 'optimized'"):
        sort(found, "optimised", CEILINGS)


def opgauge(*arguments: str, db: Path, **variables: str) -> Done:
    """Run a verb with a database that is named by a plain path."""
    return run_here(*arguments, "--db", str(db), cwd=ROOT, variables=variables)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A database with two runs that share a case."""
    path = tmp_path / "some runs.db"
    with Store.open(f"sqlite:///{path}") as store:
        for results in (some_results()[:4], some_results()):
            run = store.begin_run(Environment({}, {}))
            for result in results:
                store.add_result(run, result)
            store.finish_run(run)
    return path


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_output_that_is_not_utf_8_is_replaced(stored: Path, encoding: str) -> None:
    """A terminal without µ or lines gets letters in their place, and the command ends well."""
    command = [sys.executable, "-m", "opgauge", "show", "--db", str(stored)]
    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    assert "1 ms" in text
    assert ("x base" if encoding == "ascii" else "× base") in text


def test_a_full_disk_behind_standard_output_is_one_line(stored: Path) -> None:
    """No traceback where the output cannot be written."""
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "opgauge", "show", "--json", "--db", str(stored)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=200)
    assert done.returncode != 0
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_runs_are_listed_and_deleted(stored: Path) -> None:
    """What belongs to the run alone goes with it: its results and cases, not those of other runs."""
    newest, oldest = json.loads(opgauge("runs", "list", "--json", db=stored).stdout)
    assert (newest["results"], oldest["results"]) == (6, 4)
    assert newest["id"][:8] in opgauge("runs", "list", "--last", "1h", db=stored).stdout
    assert opgauge("runs", "list", "--since", "2999-01-01", "--json", db=stored).stdout == "[]\n"
    done = opgauge("runs", "rm", newest["id"][:8], "--yes", db=stored)
    assert "1 run deleted" in done.stdout
    with Store.open(f"sqlite:///{stored}") as store:
        (left,) = store.runs()
        assert (left.id, len(store.results(left.id, samples=True))) == (oldest["id"], 4)
        with Session(store.engine) as session:
            tables = (ResultRow, SampleRow, CaseRow)
            counts = [session.scalar(select(func.count()).select_from(table)) for table in tables]
        assert counts == [4, 4, 1]
        assert delete_runs(store.engine, ["nobody"]) == 0
    assert opgauge("runs", "rm", "zzz", "--yes", db=stored).returncode == 5


def test_a_period_begins_at_the_later_instant() -> None:
    """Hours, days and weeks back, or a date in UTC; anything else is refused."""
    assert period_start(None, None) is None
    assert period_start("36h", None, now=NOW) == NOW - timedelta(hours=36)
    assert period_start("2w", "2026-03-30", now=NOW) == datetime(2026, 3, 30, tzinfo=UTC)
    assert period_start(None, "2026-03-30T10:00+02:00") == datetime(2026, 3, 30, 8, tzinfo=UTC)
    for last, since in (("30", None), ("-1d", None), ("d", None), (None, "yesterday"), (None, "2026-13-01")):
        with pytest.raises(typer.BadParameter):
            period_start(last, since)


@pytest.mark.parametrize("style", list(ProgressStyle))
def test_progress_can_be_read_in_a_log(style: ProgressStyle, capsys: pytest.CaptureFixture[str]) -> None:
    """plain and json write a line per trial; auto writes nothing where there is no terminal."""
    results = some_results()
    with Progress(len(results), style) as progress:
        for trial, result in zip(progress.follow(one.trial for one in results), results, strict=True):
            progress.finished(trial, result)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (len(results) if style in {ProgressStyle.PLAIN, ProgressStyle.JSON} else 0)
    if style is ProgressStyle.PLAIN:
        assert lines[-1].startswith("[6/6] sign · b · torch: timeout")
    if style is ProgressStyle.JSON:
        records = [json.loads(line) for line in lines]
        assert [record["done"] for record in records] == [1, 2, 3, 4, 5, 6]
        assert (records[0]["median_ns"], records[-1]["median_ns"]) == (4e6, None)


def test_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    """It lists the trials and the expected time, and stores no run."""
    arguments = ("run", "cases/dot.yaml", "--name", "vector-small", "-i", "baseline", "--dry-run")
    found = json.loads(opgauge(*arguments, "--json", db=tmp_path / "x.db").stdout)
    assert (len(found["trials"]), found["known"]) == (8, 0)
    assert "8 trials of 8 cases, at least" in opgauge(*arguments, db=tmp_path / "x.db").stdout
    assert json.loads(opgauge("runs", "list", "--json", db=tmp_path / "x.db").stdout) == []


def test_expected_durations_come_from_the_same_trial_then_from_its_op() -> None:
    """The median of earlier results of the trial; else of its op on that device; else the sampling budget."""
    trials = [result.trial for result in some_results()]
    earlier = [
        *(timed(a_result("optimized", 1.0, name="b"), seconds) for seconds in (1.0, 2.0, 9.0)),
        timed(a_result("torch", 1.0, name="b"), 30.0),
    ]
    assert expect(trials[4:], earlier, 0.5).seconds == 32.0
    assert expect(trials[:1], earlier, 0.5).seconds == 5.5
    assert (expect(trials, [], 0.5).seconds, expect(trials, [], 0.5).known) == (3.0, 0)
    assert [duration_text(value) for value in (0.25, 59.4, 200.0, 7260.0)] == [
        "0.25 s",
        "59 s",
        "3 min 20 s",
        "2 h 1 min",
    ]


def timed(result: Result, seconds: float) -> Result:
    """The result with seconds by phase."""
    return Result(result.trial, result.status, extra={"phases_s": {"reference": seconds / 2, "measure": seconds / 2}})


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    """The exit code gives the outcome."""
    arguments = ("run", "cases/dot.yaml", "--name", "vector-small[float32]", "-i", "baseline", "--budget", "0.01")
    done = opgauge(*arguments, "--quiet", db=tmp_path / "x.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_device_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """Exit code 2 and the reason, before anything is measured or stored."""
    done = opgauge("run", "cases/dot.yaml", "--device", "cuda:9", db=tmp_path / "x.db")
    assert done.returncode == 2
    assert "cuda:9" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x.db").exists()


def test_the_command_alone_helps_and_knows_its_version() -> None:
    """Help and version end with 0; `-h` is `--help`; completion scripts are there."""
    alone, version = (run_here(*arguments, cwd=ROOT, variables={}) for arguments in ((), ("--version",)))
    assert (alone.returncode, version.returncode) == (0, 0)
    assert "gate" in alone.stdout
    assert version.stdout.startswith("opgauge ")
    assert run_here("-h", cwd=ROOT, variables={}).stdout == alone.stdout
    # the shell that is named, also where none is among the processes above this one
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "complete" in run_here("--show-completion", "bash", cwd=ROOT, variables=named).stdout


def test_a_list_of_one_op_has_all_that_a_case_can_say() -> None:
    """Parameters with types and defaults, inputs, outputs, errata."""
    text = run_here("list", "--op", "p_norm_grad", cwd=ROOT, variables={}).stdout
    for part in ("parameter porder: a number or 'fro'; default 2.0", "input dy", "outputs: dx", "erratum: "):
        assert part in text
