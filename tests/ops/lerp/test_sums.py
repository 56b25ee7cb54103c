"""Plans of lerp_grad's general sums: which threads take what, for patterns of every kind, without a GPU."""

from __future__ import annotations

from math import prod

import pytest
from opgauge.ops.lerp.sums import FIX_UP, SUM_THREADS, SumPlan, partial_places, sum_plan

Shape = tuple[int, ...]
PROCESSORS = 132
PATTERNS: tuple[tuple[Shape, Shape, Shape], ...] = (
    # dout, gradient, weight
    ((64, 4096), (4096,), (64, 4096)),
    ((4096, 64), (4096, 1), (64,)),
    ((1 << 20,), (1,), ()),
    ((1 << 20, 3), (3,), (1 << 20, 3)),
    ((8, 64, 56, 56), (64, 1, 1), (8, 64, 56, 56)),
    ((8, 56, 56, 64), (64,), ()),
    ((7, 5, 11, 13), (7, 1, 11, 1), (13,)),
    ((2, 3, 4, 5, 6, 7), (1, 3, 1, 5, 1, 7), (2, 1, 4, 1, 6, 1)),
    ((2, 1 << 20), (1, 1 << 20), (2, 1)),
    ((1 << 20, 2), (1 << 20, 1), ()),
)


def lanes(plan: SumPlan) -> int:
    """Threads of a block that share a result."""
    return 1 << plan.bits if plan.rows else SUM_THREADS >> plan.bits


@pytest.mark.parametrize(("full", "gradient", "weight"), PATTERNS)
@pytest.mark.parametrize("widest", [1, 4, 8])
def test_plans_cover_everything_once(full: Shape, gradient: Shape, weight: Shape, widest: int) -> None:
    """Kept times summed units are all vectors of dout, and blocks cover the results, in every pattern."""
    plan = sum_plan(full, gradient, weight, widest, PROCESSORS)
    assert plan.kept.units * plan.summed.units * plan.width == prod(full)
    results = plan.kept.units * (1 if plan.rows else plan.width)
    assert results == prod(gradient)
    assert plan.blocks * (SUM_THREADS // lanes(plan)) >= plan.kept.units


@pytest.mark.parametrize(("full", "gradient", "weight"), PATTERNS)
def test_large_sums_fill_the_device(full: Shape, gradient: Shape, weight: Shape) -> None:
    """A sum of many elements occupies every multiprocessor, however few its results are."""
    plan = sum_plan(full, gradient, weight, 4, PROCESSORS)
    if prod(full) >= 1 << 20:
        assert plan.blocks * plan.splits >= PROCESSORS


@pytest.mark.parametrize(("full", "gradient", "weight"), PATTERNS)
@pytest.mark.parametrize(("sums", "itemsize"), [(1, 4), (1, 8), (2, 4), (2, 8)])
def test_partial_sums_fit_the_workspace(full: Shape, gradient: Shape, weight: Shape, sums: int, itemsize: int) -> None:
    """Counters, partial sums of splits and of groups lie side by side in the workspace, whatever the plan."""
    plan = sum_plan(full, gradient, weight, 4, 1000)
    if plan.splits == 1:
        return
    results = prod(gradient)
    places = partial_places(results, sums, itemsize)
    assert plan.groups == -(-plan.splits // FIX_UP)
    assert places.arrivals + 4 * plan.blocks * (plan.groups + 1) <= places.splits
    assert places.splits + plan.splits * sums * results * itemsize <= places.groups
    assert places.groups + plan.groups * sums * results * itemsize <= places.nbytes


def test_weights_that_misalign_vectors_are_read_one_by_one() -> None:
    """A dense weight whose rows do not begin with a vector allows none; a repeated one does."""
    assert sum_plan((6, 8, 8), (1, 8, 8), (6, 1, 8), 4, PROCESSORS).width == 4
    assert sum_plan((6, 8, 6), (1, 8, 6), (6, 1, 6), 4, PROCESSORS).width == 1
    assert sum_plan((6, 9, 8), (1, 9, 8), (6, 9, 1), 4, PROCESSORS).spread
