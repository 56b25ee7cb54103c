"""Single runs are judged against what their series varies by itself."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.harness.judge.departure import PRIOR_DEVIATION, SeriesSpread, find_departure, half_widths, spread_of


def noisy(level: float, count: int, deviation: float = 0.01, seed: int = 1) -> list[float]:
    """A level with normal noise of its log."""
    return list(level * np.exp(np.random.default_rng(seed).normal(0, deviation, count)))


def test_three_times_slower_is_certain_after_one_run() -> None:
    """Also if there is one earlier run only."""
    found = find_departure([100.0, 300.0], 3)
    assert found is not None
    assert (found.index, found.before, found.after, found.ratio) == (1, 100.0, 300.0, 3.0)
    assert find_departure([100.0, 110.0], 3) is None


def test_a_quiet_series_shows_small_changes() -> None:
    """After twenty runs of half a percent of noise, five percent stand out; with five percent of noise they do not."""
    assert find_departure([*noisy(100, 20, 0.005), 105.0], 3) is not None
    assert find_departure([*noisy(100, 20, 0.05), 105.0], 3) is None


def test_faster_is_seen_too() -> None:
    """The ratio is below 1, and so is the limit."""
    found = find_departure([*noisy(100, 10), 60.0], 3)
    assert found is not None
    assert 0.59 < found.ratio < found.limit < 1


def test_the_first_of_several_slow_runs_is_named() -> None:
    """Two slow runs after ten are one departure, which began at the first of them."""
    found = find_departure([*noisy(100, 10), 150.0, 151.0], 3)
    assert found is not None
    assert found.index == 10


def test_one_outlier_in_the_past_hides_nothing() -> None:
    """The spread of a series of ten is that of most of its runs."""
    past = noisy(100, 12)
    past[5] = 180.0
    assert find_departure([*past, 120.0], 3) is not None


def test_samples_that_scatter_widen_the_prior() -> None:
    """A short series of noisy samples is not assumed to be quiet."""
    assert find_departure([100.0, 150.0], 3) is not None
    assert find_departure([100.0, 150.0], 3, within=0.1) is None


def test_false_alarms_are_rare() -> None:
    """Fewer than half a percent of series without a change are flagged, whatever their length and noise."""
    random = np.random.default_rng(7)
    sizes, deviations = random.integers(2, 31, 4000), random.uniform(0.005, 0.04, 4000)
    pairs = zip(deviations, sizes, strict=True)
    series = [list(np.exp(random.normal(0, deviation, size))) for deviation, size in pairs]
    assert sum(find_departure(one, 1) is not None for one in series) < 20


def test_a_spread_without_runs_is_the_prior() -> None:
    """Its interval for two runs is about a third either way."""
    assert spread_of([100.0]) == SeriesSpread(PRIOR_DEVIATION, 3)
    assert SeriesSpread().half_width() == pytest.approx(0.365, abs=0.01)


def test_a_spread_blends_the_deviation_of_the_latest_twenty_with_the_prior() -> None:
    """Few runs by their own deviation."""
    series = [noisy(100, count, 0.03, seed=count) for count in (1, 2, 5, 6, 20, 35, 20, 2)]
    logs = np.log(series[2])
    blended = np.sqrt((3 * PRIOR_DEVIATION**2 + 4 * logs.var(ddof=1)) / 7)
    assert spread_of(series[2]).deviation == pytest.approx(blended)
    assert spread_of(series[2]).degrees == 7
    assert spread_of(series[5]) == spread_of(series[5][-20:])


def test_half_widths_of_many_series_are_those_of_each() -> None:
    """Whatever their lengths, and wherever runs are missing."""
    random = np.random.default_rng(5)
    lengths = (0, 1, 2, 3, 5, 6, 7, 20, 21, 35, 40)
    logs = random.normal(3, 0.04, (len(lengths), 40))
    logs[:, 7] += 1.0
    known = np.stack([np.isin(np.arange(40), random.choice(40, length, replace=False)) for length in lengths])
    alone = [spread_of(np.exp(row[mask]).tolist()).half_width() for row, mask in zip(logs, known, strict=True)]
    assert half_widths(logs, known) == pytest.approx(alone)
    assert half_widths(logs[:0], known[:0]).size == 0
