"""Plans of lerp_grad's general sums: which threads take what, for patterns of every kind, without a GPU."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from opgauge.ops import FLOATS
from opgauge.ops._core.broadcast import reduced_axes
from opgauge.ops._core.dtype import accumulator_info
from opgauge.ops._cpu import threads
from opgauge.ops.lerp import cuda_grad
from opgauge.ops.lerp.sums import SUM_THREADS, sum_plan, sum_plans_of_two
from tests.ops.attempts import case_of, complaint, inputs_of

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

GRADIENTS: tuple[tuple[Shape, Shape, Shape | None], ...] = (
    # x, y, weight
    ((33,), (130, 33), (130, 33)),
    ((130, 1), (130, 33), (33,)),
    ((1,), (9001,), None),
    ((600, 3), (3,), None),
    ((600, 3), (3,), (600, 3)),
    ((600, 3), (600, 1), (1, 3)),
    ((4, 7, 1, 1), (4, 7, 5, 6), (7, 5, 1)),
    ((4, 1, 5, 1), (1, 7, 1, 6), (4, 7, 5, 6)),
    ((2, 1, 3000), (2, 5, 1), None),
    ((1, 5000), (2, 1), (2, 5000)),
    ((3, 1, 5, 1, 8, 1), (1, 4, 1, 6, 1, 3), (3, 4, 5, 6, 8, 1)),
    ((7, 5, 11), (7, 5, 11), (7, 1, 11)),
    ((7, 5, 11), (7, 5, 11), (5, 1)),
    ((40, 16), (1, 16), (1, 16)),
    ((1, 16), (1, 16), (5000, 16)),
    ((95, 1, 1), (95, 16, 2), None),
    ((24, 2, 96, 2, 3), (96, 1, 3), (24, 2, 96, 2, 3)),
    ((1, 300, 1), (6, 300, 5), None),
    ((6, 1, 300, 5), (3, 300, 1), (300, 1)),
    ((8, 1, 6), (8, 129, 6), (8, 1, 6)),
    ((20, 1, 20), (20, 60, 20), (60, 1)),
    ((3, 1, 3), (3, 70, 3), (3, 70, 1)),
    ((1, 20, 1, 6), (4, 20, 50, 6), (20, 1, 6)),
    ((90, 7, 33), (7, 33), (90, 1, 33)),
    ((60, 31), (7, 60, 31), (1, 60, 1)),
    ((20, 33, 33), (20, 1, 1), (33, 1)),
    ((1, 1), (31, 7), (50, 1, 7)),
    ((129, 4, 1), (1, 129, 4, 1), (12, 1, 4, 1)),
)


def judged(x: Shape, y: Shape, weight: Shape | None, dtype: str, backend: str) -> str:
    """What the checker has against the gradients; empty where nothing."""
    shapes = {"x": x, "y": y} if weight is None else {"x": x, "y": y, "weight": weight}
    case = case_of("lerp_grad", shapes, dtype, **({"weight": 0.3} if weight is None else {}))
    return complaint(case, inputs_of(case), "optimized", backend=backend)


@pytest.mark.parametrize(("x", "y", "weight"), GRADIENTS)
@pytest.mark.parametrize("least", [0.0, float("inf")], ids=["threads", "one-thread"])
def test_sums_on_the_cpu_are_right(
    x: Shape, y: Shape, weight: Shape | None, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are right in every pattern of broadcasting, whether threads share results, sums, or nothing."""
    monkeypatch.setattr(threads, "PAYS_NS", least)
    assert judged(x, y, weight, "float32", "cpu") == ""


@pytest.mark.gpu
@pytest.mark.parametrize(("x", "y", "weight"), GRADIENTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_on_a_gpu_are_right(x: Shape, y: Shape, weight: Shape | None, dtype: str) -> None:
    """Gradients are right in every pattern of broadcasting and in every dtype."""
    assert judged(x, y, weight, dtype, "cuda") == ""


@pytest.mark.parametrize(("full", "gradient", "weight"), PATTERNS)
@pytest.mark.parametrize("widest", [1, 4, 8])
def test_plans_cover_everything_once(full: Shape, gradient: Shape, weight: Shape, widest: int) -> None:
    """Kept times summed units are all vectors of dout, and blocks cover the results, in every pattern."""
    plan = sum_plan(full, gradient, weight, widest, PROCESSORS)
    assert plan.kept.units * plan.summed.units * plan.width == prod(full)
    results = plan.kept.units * (1 if plan.rows else plan.width)
    assert results == prod(gradient)
    assert plan.blocks << plan.column_bits >= plan.kept.units
    assert 32 <= plan.threads <= SUM_THREADS


@pytest.mark.parametrize(("full", "gradient", "weight"), PATTERNS)
def test_large_sums_fill_the_device(full: Shape, gradient: Shape, weight: Shape) -> None:
    """A sum of many elements occupies every multiprocessor, however few its results are."""
    plan = sum_plan(full, gradient, weight, 4, PROCESSORS)
    if prod(full) >= 1 << 20:
        assert plan.blocks * plan.splits >= PROCESSORS


@pytest.mark.parametrize(
    ("length", "widest", "splits"),
    [(4096, 4, 1), (8192, 4, 8), (65536, 4, 64), (4096, 2, 1), (8192, 2, 16), (8192, 8, 1), (9999, 4, 40)],
)
def test_few_elements_have_one_block_or_one_load_a_thread(length: int, widest: int, splits: int) -> None:
    """One block as long as its threads load all at once, then as many as loads of a thread of it."""
    assert sum_plan((length,), (1,), (length,), widest, PROCESSORS).splits == splits


@pytest.mark.parametrize(("x", "y", "weight"), GRADIENTS)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_partial_sums_fit_the_workspace(x: Shape, y: Shape, weight: Shape | None, dtype: str) -> None:
    """Two 64-bit words for each number of each split at most, whatever the plan and however large the device."""
    shapes = {"x": x, "y": y} if weight is None else {"x": x, "y": y, "weight": weight}
    case = case_of("lerp_grad", shapes, dtype, **({"weight": 0.3} if weight is None else {}))
    room, full = cuda_grad._workspace(case.resolved, case.params), case.resolved.inputs["dout"].shape
    summed = [shape for shape in (x, y) if reduced_axes(shape, full)]
    both = len({reduced_axes(shape, full) for shape in summed}) == 1 and len(summed) == 2
    for shape in summed:
        plan = sum_plan(full, shape, weight or (), 4, 1000)
        words = accumulator_info(dtype).itemsize // 4
        assert plan.splits == 1 or 8 * words * (plan.splits - 1) * prod(shape) * (1 + both) <= room


@pytest.mark.parametrize(("x", "y", "weight"), GRADIENTS)
def test_two_sums_of_few_elements_share_blocks(x: Shape, y: Shape, weight: Shape | None) -> None:
    """Both plans have as many threads in a block, cover their results, and share none with other blocks."""
    full = np.broadcast_shapes(x, y, weight or ())
    plans = sum_plans_of_two(full, (x, y), weight or (), PROCESSORS)
    if plans is None:
        assert prod(full) > 1 << 13
        return
    assert plans[0].threads == plans[1].threads
    for plan in plans:
        assert plan.splits == 1
        assert plan.blocks << plan.column_bits >= plan.kept.units


def test_weights_that_misalign_vectors_are_read_one_by_one() -> None:
    """A dense weight whose rows do not begin with a vector allows none; a repeated one does."""
    assert sum_plan((6000, 8, 8), (1, 8, 8), (6000, 1, 8), 4, PROCESSORS).width == 4
    assert sum_plan((6000, 8, 6), (1, 8, 6), (6000, 1, 6), 4, PROCESSORS).width == 1
    assert sum_plan((6000, 9, 8), (1, 9, 8), (6000, 9, 1), 4, PROCESSORS).spread
