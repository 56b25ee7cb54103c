"""Implementations of a case take their samples in turns, on a CPU that others use too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from math import inf, pi, sqrt
from statistics import NormalDist

import pytest

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Measurement, Result, Status
from opgauge.harness.run.execute import HELD_BYTES, LocalExecutor, takes_turns
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.interleave import (
    MEDIAN_ERROR,
    WARM_AGAIN_S,
    balanced_orders,
    first_turn,
    interleave,
    is_median_known,
    joined,
    next_turn,
    next_turns,
)
from tests.faulty.trial import trial

LIMITS = Limits(budget_s=60.0, min_samples=3, max_samples=6, warmup_s=0.0, turns=3, scattered_samples=6)
"""A first turn of two samples, then four of one, however long a sample takes."""


def run(*implementations: str) -> list[Result]:
    """Results of small trials in turns."""
    with LocalExecutor(limits=LIMITS, timeout_s=60, preload=("tests.faulty.kernels",)) as executor:
        return list(executor.run([trial(name) for name in implementations]))


def samples(result: Result) -> int:
    """How many there are."""
    return len(result.measurement.samples_ns) if result.measurement else 0


def test_turns_are_of_one_sample_in_balanced_order() -> None:
    """After the first turn each follows itself and the other."""
    bench, order = Bench(lambda _: None), list[str]()
    names = ("baseline", "optimized")
    for name in names:
        bench.run(trial(name), first_turn(LIMITS), hold=True)
    results = interleave(bench, names, LIMITS, lambda name: order.append(name[0]))
    assert "".join(order) == "boobboob"
    assert [(result.trial.implementation, samples(result)) for result in results] == [(name, 6) for name in names]


def test_samples_that_scatter_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is open who is fastest all take turns, until they have as many as may be."""
    monkeypatch.setattr("opgauge.harness.worker.interleave.is_median_known", lambda _: False)
    monkeypatch.setattr("opgauge.harness.worker.interleave.NEAR", inf)
    bench, order = Bench(lambda _: None), list[str]()
    names = ("baseline", "optimized")
    for name in names:
        bench.run(trial(name), first_turn(LIMITS), hold=True)
    results = interleave(bench, names, replace(LIMITS, scattered_samples=9), lambda name: order.append(name[0]))
    assert "".join(order) == "boobboobboobbo"
    assert [samples(result) for result in results] == [9, 9]


def test_all_end_with_their_samples() -> None:
    """Of the first turn and the others, each with the processor time."""
    results = run("sound_a", "sound_b")
    assert [(result.status, samples(result)) for result in results] == [(Status.OK, 6)] * 2
    assert [len(result.measurement.cpu_ns) for result in results if result.measurement] == [6, 6]
    assert all(result.check and result.check.ok for result in results)
    assert all({"prepare", "first call", "measure"} <= result.extra["phases_s"].keys() for result in results)


@pytest.mark.parametrize("count", range(2, 9))
def test_orders_are_balanced(count: int) -> None:
    """Each comes equally often in each place, and right after each other one."""
    orders = balanced_orders(count)
    rounds = len(orders) // count
    assert rounds == (2 if count % 2 else 1)
    for place in range(count):
        assert Counter(order[place] for order in orders) == dict.fromkeys(range(count), rounds)
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert followed == dict.fromkeys(permutations(range(count), 2), rounds)


def test_one_alone_takes_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sampled in one go, with nothing asked of the worker in between."""
    monkeypatch.delattr(LocalExecutor, "_take_turns")
    (result,) = run("baseline")
    assert (result.status, samples(result)) == (Status.OK, 6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mutate", "changed its input x (in the first call)"),
        ("overrun", "wrote outside y, after the end (in the first call)"),
        (
            "wrong_in_a_later_turn",
            ("(in a timed sample", "(on inputs of which", "(in a call right", "(after measuring"),
        ),
        ("idle_in_a_later_turn", ("(in a timed sample", "(after measuring")),
    ],
)
def test_what_is_wrong_costs_the_others_nothing(name: str, reason: str | tuple[str, ...]) -> None:
    """It loses its samples; the others go on, with the buffers that it shares with them as they were."""
    before, wrong, after = run("sound_a", name, "sound_b")
    assert (wrong.status, wrong.measurement) == (Status.WRONG, None)
    assert any(part in wrong.reason for part in ((reason,) if isinstance(reason, str) else reason))
    assert [(one.status, samples(one)) for one in (before, after)] == [(Status.OK, 6)] * 2


def test_a_death_in_a_later_turn_costs_the_others_no_sample() -> None:
    """What they have by then is theirs; the dead one says in which phase it died."""
    before, dead, after = run("sound_a", "die_in_a_later_turn", "sound_b")
    assert dead.status is Status.ERROR
    assert dead.reason.endswith("(measure)")
    assert [(one.status, samples(one)) for one in (before, after)] == [(Status.OK, 2)] * 2


@pytest.mark.parametrize(
    ("length", "device", "turns", "expected"),
    [(7, "cpu", 3, True), (7, "cpu", 1, False), (7, "cuda:0", 3, False), (HELD_BYTES // 20, "cpu", 3, False)],
)
def test_who_takes_turns(length: int, device: str, turns: int, expected: bool) -> None:
    """On the CPU, where turns are asked for, unless all buffers side by side would take too much memory."""
    assert takes_turns(trial("baseline", length=length).case, device, replace(LIMITS, turns=turns)) is expected


def with_samples(times_ns: Sequence[float], calls: int = 1) -> Result:
    """A result of these samples."""
    return Result(trial("baseline"), Status.OK, measurement=Measurement(tuple(times_ns), "t", 1, calls))


def measured(count: int, sample_ns: float, calls: int = 1) -> Result:
    """A result of `count` samples that agree."""
    return with_samples([sample_ns] * count, calls)


def test_the_first_turn_takes_its_share() -> None:
    """A third of the budget and of the samples."""
    limits = Limits(budget_s=0.6, min_samples=5, max_samples=60, warmup_s=0.05, turns=3)
    assert first_turn(limits) == replace(limits, budget_s=0.6 / 3, min_samples=2, max_samples=20)


def test_a_later_turn_takes_one_sample() -> None:
    """Of calls as before, warmed up again where a call is short, until there are enough."""
    limits = Limits(budget_s=0.6, min_samples=5, max_samples=60, warmup_s=0.05, turns=3)
    turn = next_turn(measured(20, 1000.0, 100), limits)
    assert turn == replace(limits, min_samples=1, max_samples=1, warmup_s=WARM_AGAIN_S, calls=100)
    for call_ns, calls, warmup_s in ((1e8, 1, 0.0), (9e6, 1, WARM_AGAIN_S), (1e6, 100, WARM_AGAIN_S)):
        turn = next_turn(measured(2, call_ns, calls), limits)
        assert turn is not None
        assert turn.warmup_s == warmup_s
    assert next_turn(measured(240, 1000.0), limits) is None
    assert next_turn(measured(1, 6.1e9), limits) is None
    assert next_turn(Result(trial("baseline"), Status.WRONG), limits) is None


SIXTY = measured(60, 1000.0)
HALVES = [1000.0, 1400.0] * 30


@pytest.mark.parametrize(
    ("others", "goes_on"),
    [
        ([], [False]),
        ([with_samples([1000.0] * 50 + [1e6] * 10)], [False, False]),
        ([with_samples(HALVES)], [True, True]),
        ([measured(58, 1000.0)], [True, True]),
        ([with_samples([sample * 1e4 for sample in HALVES])], [False, False]),
        ([with_samples([sample * 2 for sample in HALVES])], [False, False]),
        ([with_samples([sample / 2 for sample in HALVES])], [False, False]),
        ([with_samples(HALVES * 4)], [False, False]),
        ([replace(SIXTY, status=Status.WRONG)], [False, False]),
        ([replace(SIXTY, status=Status.WRONG), with_samples(HALVES)], [True, False, True]),
    ],
)
def test_all_go_on_while_it_is_open_who_is_fastest(others: list[Result], goes_on: list[bool]) -> None:
    """Until its median is known, it has 240 samples with the last, or its time is spent; not where it is far ahead."""
    turns = next_turns([SIXTY, *others], Limits(turns=3))
    assert [turn is not None for turn in turns] == goes_on


def test_the_median_s_standard_error() -> None:
    """Of 10,001 normal samples it is 1.25 hundredths of their deviation, within a fifth."""
    samples = [NormalDist(1000.0, 100.0).inv_cdf((place + 0.5) / 10001) for place in range(10001)]
    error = sqrt(pi / 2) * 0.1 / sqrt(len(samples))
    scale = MEDIAN_ERROR / error
    for share, expected in ((0.8, True), (1.2, False)):
        assert is_median_known([1000.0 + (sample - 1000.0) * scale * share for sample in samples]) is expected


def test_joined_results_keep_what_was_found_first() -> None:
    """Samples and seconds add up; a fault replaces them."""
    first = replace(measured(2, 1.0), extra={"phases_s": {"prepare": 1.0, "measure": 0.5}})
    second = replace(measured(3, 2.0), extra={"phases_s": {"measure": 0.25}, "repeatable": False})
    both = joined(first, second)
    assert both.measurement is not None
    assert both.measurement.samples_ns == (1.0, 1.0, 2.0, 2.0, 2.0)
    assert both.measurement.warmup == 2
    assert both.extra == {"phases_s": {"prepare": 1.0, "measure": 0.75}, "repeatable": False}
    lost = joined(first, Result(first.trial, Status.TIMEOUT, reason="no answer"))
    assert (lost.status, lost.reason, lost.measurement) == (Status.TIMEOUT, "no answer", None)
