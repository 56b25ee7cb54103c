"""Intervals and verdicts on real noise: the same code against itself, drawn from recorded block medians.

How the recordings were made is in tests/harness/recordings/README.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgauge.harness.gate.gate import MOST, Schedule, more_pairs
from opgauge.harness.judge.compare import compare_run
from opgauge.harness.judge.estimate import LEAST_PAIRS, LEVEL, estimate, split_modes
from opgauge.harness.judge.verdict import Comparison, Evidence, Rule, Side, Subject, Verdict

FOLDER = Path(__file__).parent / "recordings"
RULES = {"cpu": Rule(0.05, 0.05), "crowded": Rule(0.05, 0.05), "h200": Rule()}
"""What the policy asks of each. "crowded" is a CPU with four processes a core: nothing can be decided on it."""
RECORDED = [name for name in RULES if (FOLDER / f"{name}.json").is_file()]
CASES = 60
ALARMS = {Verdict.SLOWER, Verdict.FASTER}


def recording(name: str) -> dict[str, Any]:
    """A recording."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def logs_of(name: str) -> list[np.ndarray]:
    """Logs of block medians of each case, (pairs, 2), in the order in which they were measured."""
    return [np.log(np.array(case["pairs"])) for case in recording(name)["cases"]]


def draw(generator: np.random.Generator, logs: np.ndarray, count: int, times: int) -> np.ndarray:
    """Pairs that were measured one after another, (times, count, 2); by chance, the sides of all change places.

    Both sides ran the same code: as likely as not, one had been the other. Of single pairs they do not change
    places: A B B A takes out what depends on a block's place in its pair, and would do so no more.
    """
    starts = generator.integers(0, len(logs) - count + 1, times)
    chosen = logs[starts[:, None] + np.arange(count)]
    swapped = generator.integers(0, 2, (times, 1, 1)).astype(bool)
    return np.asarray(np.where(swapped, chosen[..., ::-1], chosen))


def judged(logs: np.ndarray, counts: list[int], rule: Rule) -> list[Comparison]:
    """What is found of cases, (cases, pairs, 2), by the first so many pairs of each."""
    side = Side()
    evidence = [
        Evidence(subject(number), side, side, tuple((a, b) for a, b in pairs[:count]))
        for number, (pairs, count) in enumerate(zip(np.exp(logs).tolist(), counts, strict=True))
    ]
    return list(compare_run(evidence, [rule] * len(evidence)))


def subject(number: int) -> Subject:
    """A case by its number."""
    return Subject("op", str(number), str(number), "optimized", "cpu")


def run_of(logs: np.ndarray, rule: Rule) -> list[Comparison]:
    """What the gate decides of a run: four pairs of each case, more of what they leave open."""
    counts = [LEAST_PAIRS] * len(logs)
    while True:
        found = judged(logs, counts, rule)
        wanted = more_pairs(found, {}, Schedule(extra=logs.shape[1] - MOST))
        if not wanted:
            return found
        counts = [count + wanted.get(one.subject, 0) for count, one in zip(counts, found, strict=True)]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_says_where_it_is_from(name: str) -> None:
    """Six cases or more, 24 blocks or more of each, with the command, the device and versions."""
    found = recording(name)
    assert found["command"].startswith("opgauge aa ")
    assert found["environment"]["numpy"]
    assert len(found["cases"]) >= 6
    assert all(2 * len(case["pairs"]) >= 24 for case in found["cases"])
    assert all(time > 0 for case in found["cases"] for pair in case["pairs"] for time in pair)


@pytest.mark.parametrize("name", RECORDED)
def test_the_interval_covers_real_noise(name: str) -> None:
    """Over all cases and numbers of pairs it holds the truth in 99 of 100 draws, to within 1 %."""
    generator = np.random.default_rng(11)
    inside = []
    for count in range(LEAST_PAIRS, 11):
        for logs in logs_of(name):
            drawn = draw(generator, logs, count, 500)
            ordered = np.sort(drawn, axis=1)
            modes = np.stack([split_modes(ordered[..., side]) for side in (0, 1)], axis=1).any(axis=1)
            low, high = estimate(drawn, has_modes=modes).interval()
            inside.append((low <= 0) & (high >= 0))
    assert np.mean(inside) > LEVEL - 0.01


@pytest.mark.parametrize("name", RECORDED)
def test_real_noise_raises_no_false_alarm(name: str) -> None:
    """Of runs of 60 cases of the same code, <= 0.1 % of decisions and <= 1 % of runs say slower or faster."""
    generator = np.random.default_rng(12)
    cases = logs_of(name)
    most = min(Schedule().total, *map(len, cases))
    runs = []
    for _ in range(50):
        chosen = generator.integers(0, len(cases), CASES)
        logs = np.concatenate([draw(generator, cases[one], most, 1) for one in chosen])
        runs.append([one.verdict for one in run_of(logs, RULES[name])])
    assert sum(verdict in ALARMS for run in runs for verdict in run) <= 0.001 * CASES * len(runs)
    assert sum(Verdict.SLOWER in run for run in runs) <= 0.01 * len(runs)


@pytest.mark.parametrize("name", RECORDED)
def test_the_detectable_change_is_detected(name: str) -> None:
    """A slowdown of what a case is said to see, planted in other draws of it, is caught in most of them.

    Said is 9 of 10, of noise like that of the ten pairs at hand; other ten of a loaded host may be worse.
    """
    generator = np.random.default_rng(13)
    cases = logs_of(name)
    caught = []
    for _ in range(40):
        chosen = [cases[one] for one in generator.integers(0, len(cases), CASES)]
        place = int(generator.integers(0, CASES))
        told, logs = (np.concatenate([draw(generator, one, 10, 1) for one in chosen]) for _ in range(2))
        sees = judged(told, [10] * CASES, RULES[name])[place].detectable_change
        assert sees is not None
        logs[place, :, 1] += np.log1p(sees)
        caught.append(judged(logs, [10] * CASES, RULES[name])[place].verdict is Verdict.SLOWER)
    assert np.mean(caught) > 0.5
