"""Stored runs compared with each other, without measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from opgauge.harness.case.case import EXPLORED, Case
from opgauge.harness.errors import NothingError
from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.gate.run import Conditions
from opgauge.harness.gate.stored_comparison import compare_stored, resolve
from opgauge.harness.judge.verdict import Kind, Verdict
from opgauge.harness.result.result import Environment, Measurement, Result, Status, Trial
from opgauge.harness.store import Store
from opgauge.ops import find_op


@pytest.fixture
def case() -> Case:
    """A small case."""
    return Case("scale", "c5", {"x": (5,)}, "float32", find_op("scale").params())


def add_runs(store: Store, case: Case, times_ns: Sequence[float]) -> list[str]:
    """A run of one block for each time; their ids."""
    found = []
    for time_ns in times_ns:
        run = store.begin_run(Environment({"cpu.model": "m"}, {}), command="test")
        measurement = Measurement((time_ns,), "test", 1)
        store.add_result(run, Result(Trial(case, "optimized", "cpu", "cpu"), Status.OK, measurement=measurement))
        store.finish_run(run)
        found.append(run)
    return found


def test_several_runs_of_a_side_are_replicates(tmp_path: Path, case: Case) -> None:
    """Six runs of each side, 30 % apart with noise of 1 %, are slower with exit code 1; the reverse is faster and 0."""
    noise = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0]
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        base = add_runs(store, case, [1000 * one for one in noise])
        head = add_runs(store, case, [1300 * one for one in reversed(noise)])
        sides = [[run for name in names for run in resolve(store.engine, name)] for names in (base, head)]
        slower = compare_stored(store.engine, sides[0], sides[1], Conditions(), lambda _: True)
        faster = compare_stored(store.engine, sides[1], sides[0], Conditions(), lambda _: True)
    assert [(one.verdict, one.pairs) for one in slower.found] == [(Verdict.SLOWER, 6)]
    assert slower.outcome.code is ExitCode.SLOWER
    assert [one.verdict for one in faster.found] == [Verdict.FASTER]
    assert faster.outcome.code is ExitCode.PASSED
    assert not slower.notes


def test_one_run_a_side_gives_a_ratio_and_a_warning(tmp_path: Path, case: Case) -> None:
    """The ratio is there, the verdict is undecided with exit code 4, and a note says that it may be the host's."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        base, head = add_runs(store, case, (1000.0, 1500.0))
        (before,), (after,) = resolve(store.engine, base), resolve(store.engine, head)
        run = compare_stored(store.engine, [before], [after], Conditions(), lambda _: True)
        assert resolve(store.engine, "last")[0].id == head
        with pytest.raises(NothingError, match="no run, commit or branch 'nobody'"):
            resolve(store.engine, "nobody")
        with pytest.raises(NothingError, match="on both sides"):
            compare_stored(store.engine, [before], [before], Conditions(), lambda _: True)
        with pytest.raises(NothingError, match="the base is the last run itself"):
            compare_stored(store.engine, [], [after], Conditions(), lambda _: True)
    (found,) = run.found
    assert found.ratio == pytest.approx(1.5)
    assert (found.verdict, run.outcome.code) == (Verdict.UNDECIDED, ExitCode.UNDECIDED)
    assert [note for note in run.notes if "one run a side" in note]


def test_what_explorations_drew_counts_on_both_sides_only(tmp_path: Path, case: Case) -> None:
    """A drawn case that one side has not measured is not "removed"; one that both sides have measured is compared."""
    drawn, both = (
        replace(case, name=name, shapes={"x": (size,)}, tags=(EXPLORED,)) for name, size in (("a", 6), ("b", 7))
    )
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        base = [*add_runs(store, drawn, [1000.0]), *add_runs(store, both, [1000.0]), *add_runs(store, case, [1000.0])]
        head = add_runs(store, both, [1000.0])
        sides = [[run for name in names for run in resolve(store.engine, name)] for names in (base, head)]
        found = compare_stored(store.engine, sides[0], sides[1], Conditions(), lambda _: True).found
    assert {(one.subject.case, one.kind is Kind.REMOVED) for one in found} == {("b", False), ("c5", True)}
