"""Exploring: drawn cases are valid, what is slow or wrong is found, shrunk, grouped, written and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

import opgauge
from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.case.rules import build_case
from opgauge.harness.cli import explore as command
from opgauge.harness.cli.options import load
from opgauge.harness.explore.draw import CaseLimits, CaseSource, draw_case, fits, values_of
from opgauge.harness.explore.explore import Exploration, ExplorationPlan, explore, sources
from opgauge.harness.explore.finding import Slowdown, group, shares, write_cases
from opgauge.harness.explore.finding import as_json as to_plain
from opgauge.harness.explore.shrink import complexity, shrink
from opgauge.harness.result.result import Measurement, Result, Status, Trial
from opgauge.ops import find_op, kernels
from opgauge.ops._core import registry
from tests.commandline import run_here

SHIPPED = load(None)
SOURCES = {source.op.name: source for source in sources(SHIPPED, None, "cpu")}
Times = Callable[[Case], float]


def measured(
    times: Times, wrong: Callable[[Case], bool] = lambda _: False
) -> Callable[[Sequence[Trial]], list[Result]]:
    """Instead of running: baseline and peers take 1 ms, optimized what `times` says, wrong where `wrong` says so."""

    def measure(trials: Sequence[Trial]) -> list[Result]:
        found = []
        for trial in trials:
            own = trial.implementation == "optimized"
            taken = Measurement((1e6 * times(trial.case) if own else 1e6,), "none", 1)
            bad = own and wrong(trial.case)
            found.append(Result(trial, Status.WRONG if bad else Status.OK, "planted" if bad else "", measurement=taken))
        return found

    return measure


def explored(op: str, times: Times, *, cases: int = 60, **more: Callable[[Case], bool]) -> Exploration:
    """An exploration of one op on the CPU by pretended times."""
    plan = ExplorationPlan(3, "cpu", monotonic() + 60, cases=cases, steps=60)
    return explore(plan, [SOURCES[op]], measured(times, **more), lambda _: None)


def _slow_if_long(case: Case) -> float:
    return 2.0 if longest(case) > 100 else 0.9


def longest(case: Case) -> int:
    """The longest axis of any input."""
    return max(length for shape in case.shapes.values() for length in (1, *shape))


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "resnet50_adds"])
def test_drawn_cases_are_valid_many_and_within_limits(name: str) -> None:
    """Of each op at least 15 of 20 draws differ, each passes the shape rule and stays within bytes and flops."""
    limits = CaseLimits(bytes=4 << 20, flops=100_000_000)
    found = [draw_case(SOURCES[name], 5, index, limits) for index in range(20)]
    cases = [case for case in found if case is not None]
    assert len({case.id for case in cases}) >= 15
    assert all(fits(case, limits) for case in cases)
    assert all(kernels(op=name, implementation="optimized", backend="cpu", dtype=case.dtype) for case in cases)


def test_without_known_cases_valid_ones_are_drawn_too() -> None:
    """A new op, of which no case file says anything, is explored from its shape rule alone."""
    for name in ("lerp_grad", "normalization", "p_norm_grad", "conv_data_grad"):
        source = CaseSource(find_op(name), (), find_op(name).dtypes)
        found = {case.id for index in range(30) if (case := draw_case(source, 1, index, CaseLimits())) is not None}
        assert len(found) >= 25, name


def test_a_seed_draws_the_same_cases_again_and_another_seed_others() -> None:
    """Draws depend on seed, op and index alone."""
    first, again, other = (
        [draw_case(SOURCES["lerp"], seed, index, CaseLimits()) for index in range(10)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_draws_reach_broadcasts_axes_parameters_dtypes_and_offsets() -> None:
    """Among 300 draws each kind of departure that kernels treat differently is there."""
    lerps = [case for i in range(300) if (case := draw_case(SOURCES["lerp_grad"], 0, i, CaseLimits())) is not None]
    assert any(case.shapes["x"] != case.shapes["y"] and "weight" in case.shapes for case in lerps)
    assert any("weight" not in case.shapes for case in lerps)
    assert any(not case.params.need_x for case in lerps)
    assert any(case.inputs for case in lerps)
    assert {case.dtype for case in lerps} == set(find_op("lerp_grad").dtypes)
    norms = [case for i in range(300) if (case := draw_case(SOURCES["p_norm_grad"], 0, i, CaseLimits())) is not None]
    assert {inf, -inf, 0.0, 2.0} <= {case.params.porder for case in norms if isinstance(case.params.porder, float)}
    convolutions = [
        case for i in range(300) if (case := draw_case(SOURCES["conv_data_grad"], 0, i, CaseLimits())) is not None
    ]
    assert any(case.params.groups == case.shapes["filter"][0] > 1 for case in convolutions)
    assert {case.params.data_format for case in convolutions} == {"channels_first", "channels_last"}


def test_a_cliff_is_found_and_shrunk_to_its_edge() -> None:
    """Three times slower beyond an axis of 1000: the smallest case written is just beyond, of one input and float32."""
    done = explored("sign", lambda case: 3.0 if longest(case) >= 1000 else 0.9)
    assert done.findings
    for finding in done.findings:
        assert longest(finding.case) == 1024
        assert prod(finding.case.shapes["x"]) == 1024
        assert finding.case.dtype == "float32"
        assert finding.slowdown is not None
        assert finding.slowdown.ratio == pytest.approx(3.0)


def test_nothing_is_found_where_optimized_is_fastest() -> None:
    """Every share but the first is zero, and no finding is made."""
    done = explored("sign", lambda _: 0.9)
    assert not done.findings
    assert shares(done.rows)["above 1.10"] == 0.0


def test_wrong_cases_are_findings_with_their_reason_and_come_first() -> None:
    """A wrong result weighs more than a slow one, and is shrunk to the smallest that is wrong."""
    done = explored("sign", _slow_if_long, wrong=lambda case: len(case.shapes["x"]) == 3)
    first = group(done.findings)[0].worst
    assert "optimized is wrong: planted" in first.reason
    assert first.case.shapes["x"] == (1, 1, 1)
    large = replace(first, case=replace(first.case, shapes={"x": (9, 9, 9)}))
    assert [one.case.shapes["x"] for one in group([large, first])[0].findings] == [(1, 1, 1), (9, 9, 9)]


def test_kernels_of_a_project_are_judged_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault of each is a finding, shrunk to the same fault; the fastest is slow where a peer is faster."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    op: Any = opgauge.op(doubled)
    for name in ("plain", "other", "torch", "baseline"):
        op.implementation(name, device="cpu")(doubled)
    case = build_case(find_op("doubled"), {"dtype": "float32", "shapes.x": (30, 40)}, name="seed")
    source = CaseSource(find_op("doubled"), [case], ["float32"])
    plan = ExplorationPlan(3, "cpu", monotonic() + 60, cases=30, steps=60)
    faults: dict[str, Callable[[Case], Status]] = {
        "plain": lambda case: Status.WRONG if len(case.shapes["x"]) == 2 else Status.OK,
        "other": lambda case: Status.ERROR if len(case.shapes["x"]) == 3 else Status.WRONG,
        "torch": lambda _: Status.WRONG,
    }
    times = {"plain": 4e6, "other": 3e6, "torch": 2e6, "baseline": 9e6}

    def measure(trials: Sequence[Trial]) -> list[Result]:
        known = [(faults.get(one.implementation), one.case) for one in trials]
        status = [Status.OK if fault is None else fault(case) for fault, case in known]
        taken = [Measurement((times[one.implementation],), "none", 1) for one in trials]
        return [
            Result(one, how, "planted", measurement=time) for one, how, time in zip(trials, status, taken, strict=True)
        ]

    found = {item.cause: item.worst for item in group(explore(plan, [source], measure, lambda _: None).findings)}
    shapes = {cause: (one.reason, one.case.shapes["x"]) for cause, one in found.items()}
    assert shapes == {
        ("doubled", "plain"): ("plain is wrong: planted", (1, 1)),
        ("doubled", "other"): ("other is wrong: planted", ()),
        ("doubled", "other", "error"): ("other failed: planted", (1, 1, 1)),
    }
    faults.clear()
    (slow,) = group(explore(plan, [source], measure, lambda _: None).findings)
    assert slow.cause == ("doubled", "other")
    assert slow.worst.slowdown == Slowdown(1.5, "torch", "cold")


def test_a_kernel_that_is_always_wrong_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told and shrunk once, whatever parameters and dtypes later cases have; the other kernel is judged too."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    op: Any = opgauge.op(dtypes=("float16", "float32"))(scaled)
    for name in ("broken", "plain", "torch"):
        op.implementation(name, device="cpu")(scaled)
    case = build_case(find_op("scaled"), {"dtype": "float32", "shapes.x": (30, 40)}, name="seed")
    plan = ExplorationPlan(3, "cpu", monotonic() + 60, cases=30, steps=60)

    def status(trial: Trial) -> Status:
        if trial.implementation != "broken":
            return Status.OK
        return Status.ERROR if longest(trial.case) % 2 else Status.WRONG

    def measure(trials: Sequence[Trial]) -> list[Result]:
        times = {"plain": 3e6, "torch": 2e6, "broken": 1e6}
        taken = [Measurement((times[one.implementation],), "none", 1) for one in trials]
        return [Result(one, status(one), "planted", measurement=time) for one, time in zip(trials, taken, strict=True)]

    told: list[str] = []
    done = explore(plan, [CaseSource(find_op("scaled"), [case], ["float16", "float32"])], measure, told.append)
    wrong = [finding for finding in done.findings if finding.reason]
    assert {finding.cause for finding in wrong} == {("scaled", "broken"), ("scaled", "broken", "error")}
    assert sum("broken is wrong" in line or "broken failed" in line for line in told) == len(wrong) == 2
    assert done.further.total() == 30 - 2
    assert len([finding for finding in done.findings if finding.slowdown == Slowdown(1.5, "torch", "cold")]) == 30
    document = to_plain(group(done.findings), done.rows, done.further)
    assert sum(one["further"] for one in document["groups"]) == 28


def test_a_reference_that_fails_is_no_fault_of_a_kernel() -> None:
    """One finding for all implementations, which names none of them."""
    reason = "the reference failed: IndexError('index 36 is out of bounds')"
    case = build_case(find_op("sign"), {"dtype": "float32", "shapes.x": (3, 4)}, name="seed")

    def result(trial: Trial) -> Result:
        return Result(trial, Status.ERROR, reason)

    plan = ExplorationPlan(3, "cpu", monotonic() + 60, cases=1, steps=0)
    trials = CaseSource(find_op("sign"), [case], ["float32"])
    done = explore(plan, [trials], lambda some: list(map(result, some)), lambda _: None)
    assert [finding.reason for finding in done.findings] == [reason]


def scaled(x: Any, *, factor: float = 2.0, shift: float = 0.0) -> Any:
    """A reference with parameters, which drawn cases have or lack."""
    return factor * x + shift


def doubled(x: Any) -> Any:
    """A project's reference, and its kernels, none of which is called `optimized`."""
    return 2 * x


def test_shares_count_against_peers_and_the_baseline_apart() -> None:
    """Half of the cases at 1.2 times every other: half are above 1.10 and half slower than the baseline."""
    cases = [case for i in range(40) if (case := draw_case(SOURCES["sign"], 9, i, CaseLimits())) is not None]
    slow = {case.id for case in cases[::2]}
    plan = ExplorationPlan(9, "cpu", monotonic() + 60, cases=len(cases), threshold=9.0)
    done = explore(plan, [SOURCES["sign"]], measured(lambda case: 1.2 if case.id in slow else 0.9), lambda _: None)
    found = shares(done.rows)
    assert found["above 1.10"] == pytest.approx(0.5, abs=0.05)
    assert found["slower than the baseline by over 2 %"] == pytest.approx(0.5, abs=0.05)


def test_shrinking_asks_no_more_often_than_allowed() -> None:
    """The number of measured candidates is bounded."""
    case = draw_case(SOURCES["conv_data_grad"], 2, 1, CaseLimits())
    assert case is not None
    asked: list[Case] = []

    def shows(candidate: Case) -> bool:
        asked.append(candidate)
        return True

    found = shrink(case, shows, 5)
    assert len(asked) <= 5
    assert complexity(found) < complexity(case)


def test_found_cases_are_read_again_as_the_same(tmp_path: Path) -> None:
    """What is written is a case file: lists, infinities and layouts come back; a comment says that there is nothing."""
    done = explored("conv_data_grad", lambda _: 5.0, cases=20)
    done.findings += explored("p_norm_grad", lambda _: 5.0, cases=40).findings
    path = tmp_path / "found.yaml"
    count = write_cases(path, group(done.findings))
    read = load_cases([path])
    assert len(read) == count
    assert {case.id for case in read} == {finding.case.id for finding in done.findings}
    assert all(case.tags == ("found",) for case in read)
    assert write_cases(path, []) == 0
    assert path.read_text(encoding="utf-8") == "# nothing was found\n"


def test_values_of_a_case_make_it_again() -> None:
    """Fields by dotted path are all that identity rests on, for every shipped case."""
    from opgauge.harness.case.rules import build_case

    for case in SHIPPED:
        assert build_case(find_op(case.op), values_of(case), name="again").id == case.id


def test_explore_resumes_with_the_same_seed(tmp_path: Path) -> None:
    """Resumed, an exploration measures nothing twice, and ends with the run it began."""
    database = f"sqlite:///{tmp_path}/explore.db"
    command = ("explore", "--op", "sign", "--device", "cpu", "--wrong", "--time", "100", "--megabytes", "1", "--db")
    run = partial(run_here, *command, database, cwd=tmp_path, variables={})
    first = run("--seed", "4", "--cases", "2")
    assert first.returncode == 0, first.stderr
    again = run("--resume", "last", "--cases", "3")
    assert again.returncode == 0, again.stderr
    assert "seed 4 on cpu" in again.stderr
    assert "3 cases in run" in again.stdout
    assert first.stdout.split("run ")[1].split(";")[0] == again.stdout.split("run ")[1].split(";")[0]


def test_no_case_begins_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that is being measured is finished, and a later one is no row; a resumed exploration measures it."""
    cases = [case for case in SHIPPED if case.op == "sign"][:3]
    trials = [Trial(case, name, "cpu", "cpu") for case in cases for name in ("baseline", "optimized")]
    clock, stored = SimpleNamespace(seconds=0.0), list[Result]()

    def run(asked: Sequence[Trial], **_: object) -> Iterator[Result]:
        for trial in asked:
            clock.seconds += 10
            yield Result(trial, Status.OK, measurement=Measurement((1e6,), "none", 1))

    monkeypatch.setattr(command, "monotonic", lambda: clock.seconds)
    store: Any = SimpleNamespace(results=lambda _: list(stored), add_result=lambda _, result: stored.append(result))
    executor: Any = SimpleNamespace(run=run)
    measured = command._measure(store, "run", executor, 0, 25.0)(trials)
    assert [result.trial for result in measured] == trials[:4]
    assert [result.trial for result in stored] == trials[:4]
    again = command._measure(store, "run", executor, 0, 1000.0)(trials)
    assert [result.trial for result in again] == trials
    assert len(stored) == len(trials)
