"""Verdicts by property, and by simulation of whole runs with and without a change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.judge.compare import compare, compare_run
from opgauge.harness.judge.verdict import (
    Evidence,
    Pair,
    Rule,
    Side,
    Verdict,
)
from tests.harness.comparisons import DEFAULT, evidence, subject

TIMES = st.floats(0.9, 1.1)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=4, max_size=10)
SWAPPED = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
QUICK = Rule(alarm_pairs=4)


@settings(max_examples=50)
@given(PAIRS, st.floats(0.5, 2.0))
def test_swapping_the_sides_turns_the_verdict_round(pairs: list[Pair], change: float) -> None:
    """The ratio is inverted, and faster and slower change places."""
    there = compare(evidence([(a, b * change) for a, b in pairs]), QUICK)
    back = compare(evidence([(b * change, a) for a, b in pairs]), QUICK)
    assert there.verdict is not None
    assert back.verdict is SWAPPED.get(there.verdict, there.verdict)
    assert there.ratio is not None
    assert back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1.0)


@settings(max_examples=50)
@given(PAIRS, st.integers(-8, 20))
def test_the_unit_of_time_changes_nothing(pairs: list[Pair], power: int) -> None:
    """Both sides scaled alike give the same verdict and ratio."""
    one = compare(evidence(pairs), QUICK)
    other = compare(evidence([(a * 2.0**power, b * 2.0**power) for a, b in pairs]), QUICK)
    assert one.verdict is other.verdict
    assert one.ratio == pytest.approx(other.ratio)


@settings(max_examples=50)
@given(PAIRS, st.floats(1.0, 1.5), st.floats(1.0, 1.5))
def test_more_slowdown_never_turns_slower_into_same(pairs: list[Pair], change: float, more: float) -> None:
    """What is slower stays slower when the head takes longer still."""
    found = compare(evidence([(a, b * change) for a, b in pairs]), QUICK)
    worse = compare(evidence([(a, b * change * more) for a, b in pairs]), QUICK)
    if found.verdict is Verdict.SLOWER:
        assert worse.verdict is Verdict.SLOWER


@settings(max_examples=50)
@given(PAIRS)
def test_the_ratio_lies_in_its_interval(pairs: list[Pair]) -> None:
    """Estimate and interval agree."""
    found = compare(evidence(pairs))
    assert found.interval is not None
    assert found.ratio is not None
    assert found.interval[0] <= found.ratio * (1 + 1e-12)
    assert found.ratio <= found.interval[1] * (1 + 1e-12)


def verdicts(
    seed: int, spreads: np.ndarray, slowdown: float = 0.0, *, rule: Rule = DEFAULT, modes: int = 0
) -> list[Verdict | None]:
    """A run of cases with log-normal noise, the first slower; four pairs, ten for the undecided.

    The first `modes` cases run 13 % slower in every other process, by chance.
    """
    generator = np.random.default_rng(seed)
    logs = generator.normal(0.0, 1.0, (len(spreads), 10, 2)) * spreads[:, None, None]
    logs[:modes] += math.log(25.5 / 22.5) * generator.integers(0, 2, (modes, 10, 2))
    logs[0, :, 1] += math.log1p(slowdown)
    times = (50_000 * np.exp(logs)).tolist()
    side = Side()
    pairs = [tuple((a, b) for a, b in case) for case in times]
    first = compare_run(
        [Evidence(subject(), side, side, case[:4]) for case in pairs],
        [rule] * len(pairs),
    )
    again = [
        Evidence(subject(), side, side, case if found.verdict is Verdict.UNDECIDED else case[:4])
        for case, found in zip(pairs, first, strict=True)
    ]
    return [one.verdict for one in compare_run(again, [rule] * len(pairs))]


def test_runs_without_a_change_stay_green() -> None:
    """A/A over 60 cases of 0.3 to 5.6 % noise: alarms in <= 0.1 % of decisions, <= 1 % of runs."""
    spreads = np.geomspace(0.003, 0.056, 60)
    runs = [verdicts(seed, spreads) for seed in range(150)]
    alarms = [verdict for run in runs for verdict in run if verdict in SWAPPED]
    assert len(alarms) <= 0.001 * 60 * len(runs)
    assert sum(Verdict.SLOWER in run for run in runs) <= 0.01 * len(runs)


def test_processes_with_two_modes_raise_no_alarm() -> None:
    """A/A with 20 bimodal cases of 60: no more alarms than without."""
    runs = [verdicts(seed, np.full(60, 0.005), modes=20) for seed in range(100)]
    assert sum(verdict in SWAPPED for run in runs for verdict in run) <= 0.001 * 60 * len(runs)


def test_a_planted_slowdown_is_caught() -> None:
    """One case of 60 at 1 % noise: 5 % slower is caught in >= 99 % of the runs."""
    runs = [verdicts(seed, np.full(60, 0.01), 0.05) for seed in range(120)]
    assert sum(run[0] is Verdict.SLOWER for run in runs) >= 0.99 * len(runs)


def test_a_small_slowdown_is_caught_where_it_is_quiet() -> None:
    """One case of 60 at 0.3 % noise: 2 % slower is caught in >= 90 % of the runs."""
    runs = [verdicts(seed, np.full(60, 0.003), 0.02) for seed in range(120)]
    assert sum(run[0] is Verdict.SLOWER for run in runs) >= 0.9 * len(runs)


def test_few_decisions_are_left_undecided() -> None:
    """A/A at a threshold of 5 % and 1 % noise: <= 2 % undecided."""
    runs = [verdicts(seed, np.full(60, 0.01), rule=Rule(0.05, 0.05)) for seed in range(60)]
    assert sum(verdict is Verdict.UNDECIDED for run in runs for verdict in run) <= 0.02 * 60 * len(runs)
