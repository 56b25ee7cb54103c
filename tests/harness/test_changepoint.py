"""Change points: by example, on synthetic series, and beside apache-otava's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.judge.changepoint import EDGE, analyse_series, find_change_points
from opgauge.harness.judge.jit_levels import cheapest_levels, fit_trend, median_of_five

RECORDED = Path(__file__).parent / "recordings" / "otava.json"
# apache-otava pins an older NumPy than ours; the file holds what it found, and says how.


def places(values: Any) -> list[int]:
    """Where the change points of a series are."""
    return [point.index for point in find_change_points(list(values))]


def near(those: list[int], these: list[int]) -> int:
    """How many of `those` have one of `these` within one commit."""
    return sum(any(abs(one - other) <= 1 for other in these) for one in those)


def synthetic(generator: np.random.Generator, least: float, most: float) -> tuple[np.ndarray, list[int]]:
    """60 values with up to three steps of `least` to `most` standard deviations, ten points apart or more."""
    steps: list[int] = []
    for place in generator.permutation(np.arange(10, 51))[: generator.integers(0, 4)]:
        if all(abs(place - other) >= 10 for other in steps):
            steps.append(int(place))
    logs = generator.normal(0.0, 0.01, 60)
    for place in steps:
        logs[place:] += generator.choice([-1, 1]) * generator.uniform(least, most) * 0.01
    return 100 * np.exp(logs), sorted(steps)


def shares(least: float, most: float, count: int = 200) -> tuple[float, float]:
    """Recall and precision, to within one commit."""
    generator = np.random.default_rng(1)
    recalled = real = right = told = 0
    for _ in range(count):
        values, steps = synthetic(generator, least, most)
        found = places(values)
        recalled, real = recalled + near(steps, found), real + len(steps)
        right, told = right + near(found, steps), told + len(found)
    return recalled / real, right / told


def test_a_step_is_found_where_it_is() -> None:
    """Twenty commits at 100, then at 110: one change point at index 20, with levels and ratio."""
    wiggle = np.tile([0.2, -0.3, 0.1, 0.0, -0.1], 4)
    (point,) = find_change_points([*(100 + wiggle), *(110 + wiggle)])
    assert point.index == 20
    assert (point.before, point.after) == (100.0, 110.0)
    assert point.ratio == pytest.approx(1.1, rel=1e-3)
    assert point.p_value < 1e-6


def test_few_points_and_short_edges_say_nothing() -> None:
    """Nine points are too few; two at the edge are, three are not."""
    level = [100.0, 100.2, 99.9, 100.1, 99.8, 100.0, 100.1, 99.9]
    assert places([*level[:5], *[200.0, 200.1, 199.9, 200.2]]) == []
    assert places([*level, 200.0, 200.1]) == []
    assert places([*level, 200.0, 200.1, 199.9]) == [8]
    assert places([200.0, 200.1, 199.9, *level]) == [3]


def test_a_lone_spike_is_no_change() -> None:
    """One commit that is 30 % slower, and then none."""
    generator = np.random.default_rng(2)
    values = 100 * np.exp(generator.normal(0, 0.01, 40))
    values[17] *= 1.3
    assert places(values) == []


def test_equal_values_have_no_change_and_a_step_between_them_has() -> None:
    """Series without any noise."""
    assert places([5.0] * 20) == []
    assert places([5.0] * 10 + [5.1] * 10) == [10]


def test_small_changes_can_be_passed_over() -> None:
    """A change of 2 % is not told where 5 % is asked for."""
    values = [100.0, 100.1] * 10 + [102.0, 102.1] * 10
    assert len(find_change_points(values, least_ratio=1.01)) == 1
    assert find_change_points(values, least_ratio=1.05) == ()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_are_no_times_are_refused(bad: float) -> None:
    """Zero, negative and non-finite values are an error, not a point."""
    with pytest.raises(ValueError, match="positive, finite"):
        find_change_points([1.0] * 12 + [bad])


@settings(max_examples=50)
@given(st.lists(st.floats(1.0, 2.0), min_size=10, max_size=40), st.integers(-10, 10))
def test_the_unit_does_not_matter_and_levels_are_long_enough(values: list[float], power: int) -> None:
    """Scaled values have the same change points, each at least three points from the next and the edges."""
    found = places(values)
    assert found == places([value * 2.0**power for value in values])
    bounds = [0, *found, len(values)]
    assert all(after - before >= EDGE for before, after in pairwise(bounds))


def test_steps_of_two_to_six_sigma_are_found() -> None:
    """Recall and precision >= 95 %, each within one commit."""
    recall, precision = shares(2.0, 6.0)
    assert recall >= 0.95
    assert precision >= 0.95


def test_steps_of_three_sigma_are_found() -> None:
    """At exactly three standard deviations too; at two, even known levels place only 86 % within one commit."""
    recall, precision = shares(3.0, 3.0)
    assert recall >= 0.95
    assert precision >= 0.95


def test_noise_alone_has_no_change_points() -> None:
    """Of 200 series without a step, at most three get one."""
    generator = np.random.default_rng(3)
    assert sum(bool(places(np.exp(generator.normal(0, 0.02, 60)))) for _ in range(200)) <= 3


def correlated(generator: np.random.Generator, share: float) -> np.ndarray:
    """60 logs of an autoregressive series: each is a share of the one before, and noise of 1 %."""
    logs = generator.normal(0.0, 0.01, 60)
    logs[0] /= np.sqrt(1 - share**2)
    for place in range(1, 60):
        logs[place] += share * logs[place - 1]
    return logs


@pytest.mark.parametrize(("share", "most"), [(0.3, 2), (0.5, 4), (0.8, 7)])
def test_autocorrelated_noise_has_few_change_points(share: float, most: int) -> None:
    """Few of 30 autoregressive series without a step get a change point; without the model nearly all do."""
    generator = np.random.default_rng(4)
    assert sum(bool(places(np.exp(correlated(generator, share)))) for _ in range(30)) <= most


@pytest.mark.parametrize("rise", [0.06, -0.12])
def test_a_slow_trend_is_a_trend(rise: float) -> None:
    """Of 20 series that move slowly by several times the noise, at most two get a change point; the rest a trend."""
    generator = np.random.default_rng(5)
    slope = np.linspace(0.0, rise, 60)
    found = [analyse_series(list(np.exp(generator.normal(0.0, 0.01, 60) + slope))) for _ in range(20)]
    assert sum(bool(one.points) for one in found) <= 2
    assert sum(one.has_trend for one in found) >= 18
    assert np.median([one.trend for one in found if one.has_trend]) == pytest.approx(np.exp(rise), rel=0.02)


def test_a_step_on_a_trend_is_both() -> None:
    """A step of ten times the noise is found at its place in a series that moves slowly in the other direction."""
    generator = np.random.default_rng(6)
    logs = generator.normal(0.0, 0.01, 60) + np.linspace(0.0, -0.1, 60)
    logs[30:] += 0.1
    found = analyse_series(list(np.exp(logs)))
    assert [point.index for point in found.points] == [30]
    assert found.trend < 0.95


def test_a_burst_is_no_change_and_the_last_points_wait_for_confirmation() -> None:
    """Three slow commits that return are no level. Three slow commits at the end are a change that is not confirmed."""
    generator = np.random.default_rng(7)
    told = 0
    for _ in range(20):
        logs = generator.normal(0.0, 0.01, 60)
        for start in (generator.integers(4, 26), generator.integers(30, 52)):
            logs[start : start + 3] += 0.08
        told += any(point.is_confirmed for point in find_change_points(list(np.exp(logs))))
    assert told <= 1
    level = generator.normal(0.0, 0.01, 40)
    level[37:] += 0.2
    (point,) = find_change_points(list(np.exp(level)))
    assert (point.index, point.is_confirmed) == (37, False)
    level[34:] += 0.2 - level[34:]
    (point,) = find_change_points(list(np.exp(level)))
    assert point.is_confirmed


def test_steps_in_white_noise_are_found_as_often_as_known() -> None:
    """Of 50 steps of 2 % in noise of 1 %, ten points or more from the edges, at least 45 are found."""
    generator = np.random.default_rng(8)
    found = 0
    for _ in range(50):
        place = int(generator.integers(10, 51))
        logs = generator.normal(0.0, 0.01, 60)
        logs[place:] += 0.02
        found += any(abs(one - place) <= 5 for one in places(np.exp(logs)))
    assert found >= 45


def test_what_otava_finds_is_found() -> None:
    """On the recorded series >= 95 % of apache-otava's change points are ours, and we miss no more steps."""
    series = json.loads(RECORDED.read_text(encoding="utf-8"))["series"]
    ours = [places(one["values"]) for one in series]
    told = sum(len(one["otava"]) for one in series)
    agreed = sum(near(one["otava"], found) for one, found in zip(series, ours, strict=True))
    assert agreed >= 0.95 * told
    steps = sum(len(one["steps"]) for one in series)
    recalled = sum(near(one["steps"], found) for one, found in zip(series, ours, strict=True))
    assert recalled >= max(0.95 * steps, sum(near(one["steps"], one["otava"]) for one in series))
    right = sum(near(found, one["steps"]) for one, found in zip(series, ours, strict=True))
    assert right >= 0.95 * sum(len(found) for found in ours)


@pytest.mark.parametrize("count", [2, 5, 6, 63, 64, 65, 130, 333])
@pytest.mark.parametrize("edge", [1, 4])
@pytest.mark.parametrize("price", [0.5, 4.0])
@pytest.mark.parametrize("height", [1.0, 8.0])
def test_the_cheapest_levels_are_found(count: int, edge: int, price: float, height: float) -> None:
    """By their squares and the price of each, as by sums over all starts in Python."""
    rng = np.random.default_rng(count)
    values = rng.standard_normal(count) + height * rng.integers(0, 3, count // 9 + 1)[np.arange(count) // 9]
    values -= values.mean()
    least = {0: -price}
    for end in range(edge, count + 1):
        least[end] = price + min(
            least[start] - values[start:end].sum() ** 2 / (end - start)
            for start in range(end - edge + 1)
            if start in least
        )
    last = cheapest_levels(values, price, edge)
    place, spent = count, 0.0
    while place and count >= edge:
        start = int(last[place])
        spent += price - values[start:place].sum() ** 2 / (place - start)
        place = start
    assert spent == pytest.approx(least.get(count, -price) + price)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.lists(st.integers(1, 49), max_size=4, unique=True))
def test_a_trend_is_that_of_least_squares(seed: int, degree: int, inside: list[int]) -> None:
    """Of powers and levels together, as NumPy fits them."""
    logs = np.random.default_rng(seed).normal(0.0, 1.0, 50)
    bounds = np.array([0, *sorted(inside), 50])
    powers = np.linspace(-1.0, 1.0, 50) ** np.arange(1, degree + 1)[:, None]
    levels = [(np.arange(50) >= start) & (np.arange(50) < end) for start, end in pairwise(bounds)]
    columns = np.vstack([powers, np.array(levels, np.float64)]).T
    wanted = np.linalg.lstsq(columns, logs, rcond=None)[0][:degree] @ powers
    assert fit_trend(logs, bounds, powers) == pytest.approx(wanted - wanted[0], abs=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=9))
def test_the_median_of_five_is_mirrored_at_the_ends(values: list[float]) -> None:
    """As NumPy has it."""
    padded = np.pad(np.array(values), 2, mode="reflect")
    wanted = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    assert median_of_five(np.array(values)).tolist() == wanted.tolist()
