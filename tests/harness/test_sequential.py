"""Error rates of the whole rule: pairs are added to what is undecided, and decided again, until all are used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opgauge.harness.gate.gate import Schedule, more_pairs
from opgauge.harness.judge.compare import compare_run
from opgauge.harness.judge.estimate import Floats
from opgauge.harness.judge.verdict import Comparison, Evidence, Side, Subject, Verdict

RECORDINGS = Path(__file__).parent / "recordings"
CASES, RUNS = 40, 12
NOISE = 0.01
"""Standard deviation of the log of one side of a pair."""
Generator = np.random.Generator
ALARMS = {Verdict.SLOWER, Verdict.FASTER}


def decide(logs: Floats, schedule: Schedule) -> Counter[Verdict | None]:
    """Verdicts on cases with these logs of pairs, (cases, pairs, 2), taken in the steps of the gate."""
    times = 1e6 * np.exp(logs)
    taken = {Subject("op", str(case), str(case), "optimized", "cpu"): schedule.start for case in range(len(times))}
    while True:
        found: tuple[Comparison, ...] = compare_run(
            [
                Evidence(subject, Side(), Side(), pairs=tuple(map(tuple, times[int(subject.case), :count].tolist())))
                for subject, count in taken.items()
            ]
        )
        wanted = more_pairs(found, {}, schedule)
        if not wanted:
            return Counter(one.verdict for one in found)
        for subject, count in wanted.items():
            taken[subject] += count


def normal(rng: Generator, shape: tuple[int, ...]) -> Floats:
    """Independent noise."""
    return rng.normal(0.0, NOISE, shape)


def heavy(rng: Generator, shape: tuple[int, ...]) -> Floats:
    """Student's t with three degrees of freedom: every thirtieth value is beyond four deviations."""
    return np.asarray(rng.standard_t(3, shape) * NOISE)


def unequal(rng: Generator, shape: tuple[int, ...]) -> Floats:
    """One side is four times as noisy as the other."""
    return np.asarray(rng.normal(0.0, NOISE, shape) * np.array((0.25, 1.0)))


def drifting(rng: Generator, shape: tuple[int, ...]) -> Floats:
    """A host that becomes slower by 1 % a block, with the sides in random order within balance."""
    cases, pairs, _ = shape
    first = np.concatenate([rng.permuted(np.tile((0, 1), (cases, 1)), axis=1) for _ in range(pairs // 2)], axis=1)
    blocks = 2 * np.arange(pairs)[None, :, None] + np.stack((first, 1 - first), axis=2)
    return np.asarray(normal(rng, shape) + 0.01 * blocks)


def bimodal(rng: Generator, shape: tuple[int, ...]) -> Floats:
    """Every process is in one of two modes that are 5 % apart, whichever its side."""
    return np.asarray(normal(rng, shape) / 2 + 0.05 * rng.integers(0, 2, shape))


@pytest.mark.parametrize("noise", [normal, heavy, unequal, drifting, bimodal])
@pytest.mark.parametrize("schedule", [Schedule(4, 2, 10), Schedule(6, 2, 10)], ids=["from 4", "from 6"])
def test_equal_code_raises_no_alarm(noise: Callable[[Generator, tuple[int, ...]], Floats], schedule: Schedule) -> None:
    """Under each kind of noise at most 0.5 % of 480 decisions on equal code say slower or faster."""
    rng = np.random.default_rng(7)
    found: Counter[Verdict | None] = Counter()
    for _ in range(RUNS):
        found += decide(noise(rng, (CASES, schedule.total, 2)), schedule)
    assert found.total() == CASES * RUNS
    assert sum(found[verdict] for verdict in ALARMS) <= 0.005 * found.total()


def test_equal_code_is_called_the_same_and_a_change_is_not() -> None:
    """With 1 % of noise 98 % are the same; of changes at the margin of `same` at most 1 % are called the same."""
    rng = np.random.default_rng(8)
    schedule = Schedule(6, 2, 10)
    same = decide(normal(rng, (400, schedule.total, 2)), schedule)
    assert same[Verdict.SAME] >= 0.98 * 400
    changed = decide(normal(rng, (400, schedule.total, 2)) + np.array((0.0, np.log(1.05))), schedule)
    assert changed[Verdict.SAME] <= 0.01 * 400
    assert changed[Verdict.FASTER] == 0


def test_planted_changes_are_caught() -> None:
    """One case of 40 is slower by 5 % with noise of 1 %: it is called slower in at least 97 of 100 runs."""
    rng = np.random.default_rng(9)
    schedule, caught = Schedule(6, 2, 10), 0
    for _ in range(60):
        logs = normal(rng, (CASES, schedule.total, 2))
        logs[0, :, 1] += np.log(1.05)
        caught += decide(logs, schedule)[Verdict.SLOWER] > 0
    assert caught >= 0.97 * 60


def test_extra_pairs_prove_what_ten_leave_open() -> None:
    """One case of 40 is slower by 3 % with noise of 1 % a side: ten pairs miss a third of such changes."""
    rng = np.random.default_rng(12)
    caught: Counter[int] = Counter()
    for _ in range(60):
        logs = normal(rng, (CASES, 16, 2))
        logs[0, :, 1] += np.log(1.03)
        for extra in (0, 6):
            caught[extra] += decide(logs, Schedule(4, 2, 10, extra))[Verdict.SLOWER] > 0
    assert caught[0] < 0.7 * 60
    assert caught[6] > 0.8 * 60


def test_alarms_at_every_look_would_be_false() -> None:
    """The simulation can fail: without the wait for all pairs, two modes raise alarms on equal code."""
    rng = np.random.default_rng(10)
    modes = 0.05 * rng.integers(0, 2, (4000, 4, 2)) + rng.normal(0.0, 1e-4, (4000, 4, 2))
    times = 1e6 * np.exp(modes)
    in_line = [all(head > 1.04 * base for base, head in pairs) for pairs in times.tolist()]
    assert 5 < sum(in_line) < 40


@pytest.mark.parametrize("schedule", [Schedule(4, 2, 10, 0), Schedule(4, 2, 10, 6)], ids=["ten", "sixteen"])
@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_recorded_noise_raises_no_alarm(name: str, schedule: Schedule) -> None:
    """Pairs of equal code drawn from recordings, older ones among them, raise no alarm in the gate's steps."""
    rng = np.random.default_rng(11)
    series = [one["pairs"] for one in json.loads((RECORDINGS / f"{name}.json").read_text())["cases"]]
    most = schedule.total
    series = [pairs for pairs in series if len(pairs) >= most]
    starts = [int(rng.integers(0, len(pairs) - most + 1)) for pairs in series]
    logs = np.log(np.array([pairs[start : start + most] for pairs, start in zip(series, starts, strict=True)]))
    found = decide(logs, schedule)
    assert sum(found[verdict] for verdict in ALARMS) == 0
    assert found.total() == len(series) > 0
