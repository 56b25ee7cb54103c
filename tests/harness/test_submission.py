"""Runs from elsewhere are read as strictly as they are written, and entered whole or not at all."""

from __future__ import annotations

import copy
import json
import math
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from opgauge.harness.case.case import Case
from opgauge.harness.errors import HarnessError
from opgauge.harness.report.export import whole_run
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from opgauge.harness.result.strict import SubmissionError
from opgauge.harness.result.submission import join, parse, read_submission
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Run, Store
from opgauge.harness.store.bulk import Entered, SubmissionPart, add_part, add_run, has_run, list_parts
from opgauge.harness.store.tables import PartRow, ResultRow, SampleRow
from opgauge.ops import find_op
from tests.databases import database
from tests.hostile import HOSTILE, laden, places, put

ENVIRONMENT = Environment({"cpu.model": "test"}, {"commit": "abc"})


def a_result(implementation: str = "optimized", porder: float = math.inf, block: int = 0) -> Result:
    """A result with a parameter that JSON has no number for."""
    case = Case("p_norm", "rows", {"x": (3, 4)}, "float32", find_op("p_norm").params(porder=porder), tags=("smoke",))
    measurement = Measurement((10.0, 12.0, 11.0), "test", 3, cpu_ns=(1.0, 2.0), hot_ns=9.5)
    check = Check(ok=True, max_abs_error=0.0, max_rel_error=math.inf, worst=0.5)
    trial = Trial(case, implementation, "cpu", "cpu")
    return Result(trial, Status.OK, check=check, measurement=measurement, bytes=64, flops=24, block=block)


def a_run() -> dict[str, Any]:
    """A run as it is sent."""
    started = datetime(2026, 1, 31, 12, tzinfo=UTC)
    run = Run(str(uuid.uuid4()), started, started, "finished", "abc", "opgauge run", ENVIRONMENT, 2)
    results = [a_result(), a_result("baseline"), a_result(block=1)]
    sent: dict[str, Any] = json.loads(json.dumps(whole_run(run, results, {"cpu": Ceilings("cpu", copy_gbps=10.0)})))
    return sent


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database(tmp_path) as made:
        yield made


def test_a_run_comes_out_as_it_went_in(url: str) -> None:
    """Results, samples, ceilings, times and status survive; a second time enters nothing."""
    sent = a_run()
    with Store.open(url) as store:
        assert add_run(store.engine, read_submission(sent)) is Entered.CREATED
        assert add_run(store.engine, read_submission(sent)) is Entered.SAME
        assert has_run(store.engine, sent["run"]["id"])
        run = store.find_run()
        assert (run.status, run.results, run.commit) == ("finished", 3, "abc")
        results, ceilings = store.results(run.id, samples=True), store.ceilings(run.id)
        assert json.loads(json.dumps(whole_run(run, results, ceilings)))["run"] == sent["run"]
        plain = [replace(one, extra={}) for one in results]
        assert plain == [a_result(), a_result("baseline"), a_result(block=1)]


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (str(ROOT / "cases" / "p_norm.yaml"), "cases/p_norm.yaml"),
        (str(ROOT.parent / "others.yaml"), str(ROOT.parent / "others.yaml")),
        ("cases/p_norm.yaml", "cases/p_norm.yaml"),
        ("", ""),
    ],
)
def test_case_files_of_the_tree_are_named_by_their_place_in_it(file: str, named: str) -> None:
    """A run that others read does not tell where the tree lay."""
    found = a_result()
    written = replace(found, trial=replace(found.trial, case=replace(found.trial.case, file=file)))
    run = Run(str(uuid.uuid4()), datetime.now(UTC), None, "finished", "abc", "opgauge run", ENVIRONMENT, 1)
    assert whole_run(run, [written], {})["results"][0]["trial"]["case"]["file"] == named


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        *folders, last = path.split("/")
        place: Any = run
        for name in folders:
            place = place[int(name) if name.isdigit() else name]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("opgauge", 2, "format 2"),
        ("extra", 1, "unknown key 'extra'"),
        ("run/id", "../../etc", "should be a UUID"),
        ("run/id", "{12345678-1234-5678-1234-567812345678}", "should be written"),
        ("run/status", "running", "none of finished"),
        ("run/started", "yesterday", "should be a moment"),
        ("run/started", "2026-01-31T12:00:00", "no time zone"),
        ("run/started", "2999-01-31T12:00:00+00:00", "in the future"),
        ("run/started", "0001-01-01T00:00:00+14:00", "before 2000"),
        ("run/started", "1999-12-31T23:59:59+00:00", "before 2000"),
        ("run/finished", 1e300, "should be a moment"),
        ("run/finished", "2001-01-31T12:00:00+00:00", "is before its start"),
        ("run/environment/soft/note", "x" * 70_000, "at most 65536"),
        ("run/environment/hard", [], "should be a mapping"),
        ("run/environment/soft/commit", "a" * 65, "more than 64"),
        ("ceilings/0/copy_gbps", -1.0, "positive"),
        ("ceilings/0/device", "tpu", "cpu or cuda"),
        ("ceilings/0/copy_gbps", 5e-324, "sensible size"),
        ("ceilings/0/sizes", [2, 1], "ascend"),
        ("ceilings/0/sizes", [0, 1], "ascend from 1"),
        ("ceilings/0/copies_ns", [1.0], "a time for each size"),
        ("results", {}, "should be a list"),
        ("results/0/status", "fine", "none of ok"),
        ("results/0/block", True, "whole number"),
        ("results/0/block", 2**31, "too large"),
        ("results/0/bytes", 2**63, "whole number"),
        ("results/0/bytes", -1, "whole number"),
        ("results/0/reson", "x", "did you mean 'reason'"),
        ("results/0/check/ok", False, "with a check that failed"),
        ("results/0/measurement", None, "ok without"),
        ("results/0/measurement/samples_ns", [], "one at least"),
        ("results/0/measurement/samples_ns", [0.0], "positive numbers"),
        ("results/0/measurement/samples_ns", ["inf"], "positive numbers"),
        ("results/0/measurement/samples_ns", [[1.0]], "a number"),
        ("results/0/measurement/samples_ns", "123", "a list"),
        ("results/0/measurement/hot_ns", "nan", "positive number"),
        ("results/0/measurement/hot_ns", 1e300, "sensible size"),
        ("results/0/measurement/samples_ns", [1e308, 1e308], "sensible size"),
        ("results/0/measurement/samples_ns", [5e-324], "sensible size"),
        ("results/0/measurement/samples_ns", [1.0, "nan"], "positive numbers"),
        ("results/0/measurement/samples_ns", ["nan", 1.0], "positive numbers"),
        ("results/0/measurement/samples_ns", [1.0] * 500_001, "more than 500000 samples"),
        ("results/0/measurement/cpu_ns", [-1.0], "number from 0"),
        ("results/0/measurement/clock_mhz", ["inf"], "number from 0"),
        ("results/0/check/worst", ".inf", "a number"),
        ("results/0/check/worst", -1.0, "below 0"),
        ("results/0/ruler", {"copy_ns": -1.0, "arithmetic_ns": 1.0, "launch_ns": 1.0}, "ruler.copy_ns"),
        ("results/0/ruler", {"copy_ns": 1.0, "arithmetic_ns": "nan", "launch_ns": 1.0}, "ruler.arithmetic_ns"),
        ("results/0/profile", {"time_ns": "nan"}, "number from 0"),
        ("results/0/profile", {"kernels": [{"name": "k", "launches": 1, "time_ns": 1.0, "share": 7.0}]}, "from 0 to 1"),
        ("results/0/reason", "x" * 100_001, "at most 100000"),
        ("results/0/extra", {"log": ["x" * 99_999] * 3}, "beside its samples"),
        ("results/0/trial/device", "cuda", "cpu or cuda:N"),
        ("results/0/trial/backend", "cuda", "not that of"),
        ("results/0/trial/implementation", "x" * 65, "1 to 64"),
        ("results/0/trial/implementation", "baseline", "occurs twice"),
        ("results/0/trial/case/op", "p_nrm", "did you mean 'p_norm'"),
        ("results/0/trial/case/shapes", {"x": [2**62, 9]}, "elements"),
        ("results/0/trial/case/params", {"porder": "banana"}, "porder"),
        ("results/0/trial/case/note", "x" * 70_000, "at most 65536"),
        ("results/0/extra", {"a": [[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]}, "too deeply"),
        ("results/0/extra", {"a": 10**40}, "over 2"),
    ],
)
def test_what_is_wrong_is_refused(path: str, value: Any, message: str) -> None:
    """One wrong field, and the run is refused with a message that names it."""
    sent = a_run()
    _set(path, value)(sent)
    with pytest.raises(SubmissionError, match=message):
        read_submission(sent)


def test_every_field_may_hold_anything() -> None:
    """Whatever stands in whichever place, the run is taken, or refused by an error of ours; most is refused."""
    sent = laden(a_run())
    sent["results"] = sent["results"][:1]
    taken = refused = 0
    for path in list(places(sent)):
        for value in HOSTILE:
            changed = copy.deepcopy(sent)
            put(changed, path, value)
            try:
                read_submission(changed)
                taken += 1
            except HarnessError:
                refused += 1
    assert refused > 3 * taken > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "no JSON"),
        (b"[NaN]", "NaN"),
        (b"\xff", "UTF-8"),
        (b"[" * 5000, "nested|no JSON"),
        (b"[" + b"9" * 5000 + b"]", "integer"),
        (b'["\\u0000"]', "character that databases cannot store"),
        (b'["\\ud800"]', "character that databases cannot store"),
        (b"[" + b"[]," * 1_000_001 + b"1]", "too many brackets"),
    ],
)
def test_only_json_is_parsed(text: bytes, message: str) -> None:
    """No NaN, no endless nesting, no NUL and no half characters: databases would stumble over them later."""
    with pytest.raises(SubmissionError, match=message):
        parse(text)
    assert parse(b'["\\\\u0000 \\ud83d\\ude00"]') == ["\\u0000 😀"]


@pytest.mark.parametrize("data", [None, [], 1, "x", {}, {"opgauge": 1}, {"opgauge": 1, "run": []}])
def test_what_is_no_run_is_refused(data: Any) -> None:
    """Anything but a run is one error of ours."""
    with pytest.raises(HarnessError):
        read_submission(data)


def test_a_run_that_breaks_off_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last insert fails, neither the run nor a result of it is there."""
    from opgauge.harness.store import bulk

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(bulk, "packed_samples", fail)
    sent = a_run()
    with Store.open(url) as store:
        with pytest.raises(OSError, match="full"):
            add_run(store.engine, read_submission(sent))
        assert store.runs() == []
        with store.engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(ResultRow)).scalar() == 0
        monkeypatch.undo()
        assert add_run(store.engine, read_submission(sent)) is Entered.CREATED
        with store.engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(SampleRow)).scalar() == 3


def test_parts_wait_unseen(url: str) -> None:
    """A part is kept once, another of its number is refused, and no run is seen until it is whole."""
    sent = a_run()
    part = SubmissionPart(sent["run"]["id"], 0, "me", 3, "digest")
    with Store.open(url) as store:
        assert add_part(store.engine, part, b"body")
        assert not add_part(store.engine, part, b"body")
        with pytest.raises(HarnessError, match="other content"):
            add_part(store.engine, replace(part, digest="other"), b"body")
        assert list_parts(store.engine, part.run) == [part]
        assert store.runs() == []
        add_run(store.engine, read_submission(sent))
        with store.engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(PartRow)).scalar() == 0


def test_parts_are_joined_in_order() -> None:
    """The results of all parts follow each other; the same result in two parts is refused."""
    whole = read_submission(a_run())
    first, rest = (
        replace(whole, results=whole.results[some], result_digests=whole.result_digests[some])
        for some in (slice(1), slice(1, None))
    )
    assert join([first, rest]) == whole
    assert join([first, rest]).digest == whole.digest
    with pytest.raises(SubmissionError, match="twice"):
        join([first, whole])


def test_a_killed_process_leaves_no_half_run(url: str, tmp_path: Path) -> None:
    """A process that is killed between the results and their samples leaves neither run nor results."""
    code = """
import os, signal, sys
from opgauge.harness.store import Store, bulk
from opgauge.harness.result.submission import parse, read_submission
bulk.packed_samples = lambda _: os.kill(os.getpid(), signal.SIGKILL)
with Store.open(sys.argv[1]) as store:
    bulk.add_run(store.engine, read_submission(parse(sys.stdin.buffer.read())))
"""
    sent = a_run()
    command = [sys.executable, "-c", code, url]
    done = subprocess.run(command, input=json.dumps(sent).encode(), cwd=ROOT, check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL
    with Store.open(url) as store:
        assert store.runs() == []
        with store.engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(ResultRow)).scalar() == 0
        assert add_run(store.engine, read_submission(sent)) is Entered.CREATED
