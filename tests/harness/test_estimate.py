"""Tails of Student's t, intervals over pairs, strays, modes, false discoveries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opgauge.harness.judge.estimate import LEVEL, estimate, find_modes, reject
from opgauge.harness.judge.student import quantile, upper_tail


def noise(seed: int, cases: int, pairs: int, spread: float, strays: float = 0.0) -> np.ndarray:
    """Logs of block medians that differ by log-normal noise; a share `strays` of blocks is 30 % slower on average."""
    generator = np.random.default_rng(seed)
    logs = generator.normal(0.0, spread, (cases, pairs, 2))
    return logs + (generator.random(logs.shape) < strays) * generator.exponential(0.3, logs.shape)


@pytest.mark.parametrize(
    ("tail", "degrees", "expected"),
    [(0.025, 1, 12.7062), (0.025, 2, 4.3027), (0.005, 3, 5.8409), (0.005, 9, 3.2498), (1e-5, 18, 5.72233)],
)
def test_quantiles_are_those_of_the_tables(tail: float, degrees: int, expected: float) -> None:
    """Student's t as printed in tables, and back."""
    assert quantile(tail, degrees) == pytest.approx(expected, abs=1e-4)
    assert upper_tail(quantile(tail, degrees), degrees) == pytest.approx(tail, rel=1e-6)


def test_tails_are_symmetric_and_reach_zero() -> None:
    """P(T > t) + P(T > -t) is 1; at infinity it is 0."""
    degrees = np.arange(1, 40)
    assert np.allclose(upper_tail(1.3, degrees) + upper_tail(-1.3, degrees), 1.0)
    assert upper_tail(math.inf, 5) == 0.0
    assert upper_tail(0.0, 4) == 0.5


def test_an_interval_by_hand() -> None:
    """Four ratios 1 ± 1 %: the pairs' error is s / 2, and t(3) at a quarter of the allowed error bounds it."""
    logs = np.array([[[0.0, 0.01], [0.02, 0.01], [-0.02, -0.01], [0.0, -0.01]]])
    found = estimate(logs)
    differences = np.array([0.01, -0.01, 0.01, -0.01])
    assert found.centre[0] == pytest.approx(0.0, abs=1e-15)
    assert found.pair_error[0] == pytest.approx(differences.std(ddof=1) / 2)
    assert found.half_width()[0] == pytest.approx(
        min(quantile(0.0025, 3) * found.pair_error[0], quantile(0.0025, 6) * found.side_error[0])
    )


def test_equal_blocks_prove_nothing_finer_than_the_clock() -> None:
    """No spread at all still leaves an interval."""
    assert 0.0003 < estimate(np.zeros((1, 10, 2))).half_width()[0] < 0.001


@pytest.mark.parametrize("pairs", range(4, 11))
def test_the_interval_covers_what_it_says(pairs: int) -> None:
    """Coverage within 1 % of the nominal 99 %, for noise of 0.3 to 5.6 %, with and without strays."""
    for spread, strays in ((0.003, 0.0), (0.01, 0.02), (0.056, 0.0), (0.056, 0.05)):
        low, high = estimate(noise(pairs, 8000, pairs, spread, strays)).interval()
        assert abs(((low <= 0) & (high >= 0)).mean() - LEVEL) < 0.01


def test_an_interval_stays_right_when_the_host_drifts() -> None:
    """A drift that both blocks of a pair share, ten times the noise, neither widens nor breaks the interval."""
    drift = np.random.default_rng(3).normal(0, 0.1, (8000, 6, 1))
    found = estimate(noise(4, 8000, 6, 0.01) + drift)
    assert abs((np.abs(found.centre) <= found.half_width()).mean() - LEVEL) < 0.01
    assert np.median(found.half_width()) < 0.04


def test_a_stray_block_does_not_hide_the_others() -> None:
    """One block of ten that is 30 % slower leaves the interval as narrow as it was; four pairs are all kept."""
    logs = noise(5, 1, 10, 0.01)
    logs[0, 3, 1] += 0.3
    found = estimate(logs)
    assert found.kept[0] == 9
    assert found.half_width()[0] < 0.03
    assert estimate(logs[:, :4]).kept[0] == 4
    assert estimate(logs, has_modes=[True]).kept[0] == 10


def test_a_series_with_two_modes_is_called_bimodal() -> None:
    """22.5 ms or 25.5 ms by process, with 0.05 ms inside: both modes are named."""
    modes = find_modes([22.5e6, 25.5e6, 22.55e6, 25.52e6, 22.48e6, 25.46e6])
    assert modes == (22.5e6, 25.5e6)
    assert find_modes([22.5, 22.5, 22.51, 22.5]) == (22.5,)
    assert find_modes([1.0, 2.0]) == (1.5,)
    assert find_modes([]) == ()


def test_one_mode_is_seldom_called_two() -> None:
    """Of series with a single mode, about one in a hundred is called bimodal."""
    generator = np.random.default_rng(6)
    for blocks in (4, 7, 10, 24):
        calls = [len(find_modes(np.exp(generator.normal(0, 0.05, blocks)))) for _ in range(1000)]
        assert calls.count(2) <= 25


def test_false_discoveries_are_controlled_step_up() -> None:
    """Benjamini and Hochberg's own example: 4 of 15 fall at q = 5 %."""
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528]
    assert reject([*p, 0.7590, 1.0], 0.05).sum() == 4
    assert reject([], 0.05).size == 0
    assert reject([0.04, 0.045], 0.05).tolist() == [True, True]
