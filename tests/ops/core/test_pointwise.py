"""Launches of pointwise kernels: every element is covered."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from opgauge.ops import dtype_info, find_op
from opgauge.ops._core.broadcast import merge_strides
from opgauge.ops._core.tuning import override
from opgauge.ops._cuda import fill, pointwise
from opgauge.ops._cuda.pointwise import THREADS
from opgauge.ops._cuda.reduction import launch as reduction_launch
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.lerp import cuda as lerp
from opgauge.ops.lerp import cuda_grad, cuda_sums

MULTIPROCESSORS = 132


class Buffer:
    """What a launch is planned from: shape, dtype and address."""

    def __init__(self, *shape: int, ptr: int = 4096, dtype: str = "float32") -> None:
        self.shape, self.dtype, self.size = shape, np.dtype(dtype_info(dtype).numpy), int(np.prod(shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.data = type("Memory", (), {"ptr": ptr})


def accessed(size: int, launch: pointwise.FlatLaunch, width: int) -> np.ndarray[Any, Any]:
    """Number of stores to each element, by the index arithmetic of `VectorAccess` in flat.cuh."""
    vectors, threads, _ = map(int, launch.numbers)
    index = np.arange(launch.grid[0] * launch.block[0])
    index = index[index < threads]
    found = np.zeros(size, int)
    for i in range(width):
        np.add.at(found, index[index < vectors] * width + i, 1)
    np.add.at(found, index[index >= vectors] + vectors * (width - 1), 1)
    return found


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("threads", [1, 255, 256, 257, 512, 513, 1279])
def test_flat_launches_store_every_element_once(threads: int, width: int) -> None:
    """Vectors and the elements after them cover a tensor, with no block to spare."""
    for size in (threads, threads * width, threads * width + width - 1):
        launch = pointwise.flat(size, width, 4)
        assert (accessed(size, launch, width) == 1).all()
        assert launch.extent == ("ANY" if width == 1 or size % width else "VECTORS")
        assert launch.block == ((min(size, 512),) if width == 1 else (256,))
        assert (launch.grid[0] - 1) * launch.block[0] < launch.numbers[1]


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("beyond", [0, 1, 255, 256, 4095])
def test_elements_a_block_apart_are_stored_once(itemsize: int, beyond: int) -> None:
    """Where addresses allow no vectors, the threads of large tensors compute 16 bytes, with no block to spare."""
    size = pointwise.APART_FROM // itemsize + beyond
    launch = pointwise.flat(size, 1, itemsize)
    first = np.arange(launch.grid[0])[:, None] * launch.block[0] * launch.width + np.arange(launch.block[0])
    stored = (first[..., None] + np.arange(launch.width) * launch.block[0]).ravel()
    assert launch.extent == "APART"
    assert launch.width * itemsize == 16
    assert sorted(stored[stored < size]) == [*range(size)]
    assert first[-1, 0] < size == launch.numbers[1]
    assert pointwise.flat(size, 1, 8).extent == pointwise.flat(size - beyond - 1, 1, itemsize).extent == "ANY"


@pytest.mark.parametrize("width", [1, 4])
def test_an_empty_launch_has_a_block(width: int) -> None:
    """CUDA rejects a launch without blocks."""
    assert pointwise.one_per_thread(0, width)[0] == (1,)


def test_exact_fills_have_no_thread_to_spare() -> None:
    """Blocks of at most 1024 threads, in whole warps for many; None for primes above that."""
    found = {size: fill.full_blocks(size) for size in range(1, 2 * pointwise.FEW)}
    planned = {size: (*grid, *block) for size, (grid, block) in ((s, f) for s, f in found.items() if f)}
    assert all(grid * block == size and block <= 1024 for size, (grid, block) in planned.items())
    assert set(range(1, 1025)) <= set(planned)
    assert all(block % 32 == 0 for size, (_, block) in planned.items() if size > pointwise.FEW)
    assert found[2053] is found[pointwise.FEW + 1] is None
    assert planned[3000] == (12, 250)
    assert planned[24000] == (125, 192)


def test_few_elements_are_computed_one_by_one() -> None:
    """A thread computes 16 bytes only if there are many, and addresses allow it."""
    assert pointwise.flat_width(Buffer(pointwise.FEW)) == 1
    assert pointwise.flat_width(Buffer(pointwise.FEW + 1)) == 4
    assert pointwise.flat_width(Buffer(pointwise.FEW + 1), Buffer(pointwise.FEW + 1, ptr=4100)) == 1


MEGABYTE, EVERY = (1 << 20) // 4, pointwise.EVERY_BLOCK


@pytest.mark.parametrize(
    ("elements", "width", "extent", "kept"),
    [
        (THREADS * 8, 4, "VECTORS", EVERY),
        (THREADS * 8, 1, "ANY", EVERY),
        (MEGABYTE - 1, 1, "ANY", EVERY),
        (THREADS * 8 + 3, 4, "ANY", EVERY),
        (22 * MEGABYTE - 1, 4, "ANY", EVERY),
        (22 * MEGABYTE, 4, "LARGE", 2816),
        (121 * MEGABYTE - 1, 4, "LARGE", 2816),
        (121 * MEGABYTE, 4, "VECTORS", EVERY),
        ((1 << 31) - 1, 4, "ANY", EVERY),
        (1 << 31, 4, "LARGE", EVERY),
        (1 << 31, 1, "LARGE", EVERY),
    ],
)
def test_what_is_known_of_a_flat_launch(
    monkeypatch: pytest.MonkeyPatch, elements: int, width: int, extent: str, kept: int
) -> None:
    """Indices have 64 bits from 2^31 elements on; two to ten times what is kept is kept in part, if in vectors."""
    declared, nothing = pointwise.flat_names("add_n", {"float32": "float"}), cast("CudaSource", None)
    monkeypatch.setattr(pointwise, "bind_launch", lambda _source, *launch: lambda: launch)
    name, grid, block, numbers = pointwise.bind_flat(nothing, "add_n", "float", Buffer(elements), width, ())()
    assert name in declared
    assert name == f"add_n<float, {width}, {extent}>"
    assert (grid, block) == pointwise.one_per_thread(elements // width + elements % width, width)
    assert numbers == (elements // width, elements // width + elements % width, kept)


@pytest.mark.parametrize("megabytes", [0, 5, 16])
def test_how_much_is_kept_is_a_launch_parameter(megabytes: int) -> None:
    """Nothing is kept in part where nothing is to be kept; otherwise blocks of 4 KB, together as much as asked for."""
    with override({"pointwise.kept_megabytes": megabytes}):
        assert pointwise.evict_last_blocks(64 << 20) == megabytes * 256 * (megabytes != 5)
        assert pointwise.evict_last_blocks(11 << 20) == (5 * 256 if megabytes == 5 else 0)


class Launch(NamedTuple):
    """What a kernel is launched with."""

    name: str
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


def launches(
    monkeypatch: pytest.MonkeyPatch, gradients: dict[str, Buffer], weight: float = 0.5, workspace: Any = None
) -> list[Launch]:
    """What lerp_grad launches for gradients of these shapes by a weight that is a number."""
    found: list[Launch] = []
    declared = (*lerp.SOURCE.expressions, *cuda_sums.SUMS.expressions)

    def bind_launch(_source: Any, expression: str, grid: Any, _block: Any, arguments: Any) -> Any:
        assert expression in declared
        return lambda: found.append(Launch(expression, grid, arguments))

    monkeypatch.setattr(reduction_launch, "bind_launch", bind_launch)
    for module in (cuda_grad, cuda_sums):
        monkeypatch.setattr(module, "multiprocessors", lambda: MULTIPROCESSORS)
        monkeypatch.setattr(module, "bind_launch", bind_launch)
    dx, dy = gradients.values()
    dout = Buffer(*np.broadcast_shapes(dx.shape, dy.shape))
    asked: dict[str, Any] = {"weight": weight, "need_x": True, "need_y": True, "workspace": workspace}
    cuda_grad.lerp_grad(x=dx, y=dy, dout=dout, out=gradients, **asked)()
    return found


@pytest.mark.parametrize(
    ("x", "y", "name", "grids"),
    [
        ((64, 1, 64, 4096), (64, 64, 1, 4096), "grad_crossed", [(32, 64)]),
        ((64, 1, 128, 4096), (64, 128, 1, 4096), "reduce_columns_grid", [(131_072, 1), (131_072, 1)]),
        ((3, 1, 5), (3, 70, 5), "reduce_elements_lanes", [(2, 1)]),
        ((3, 1, 5), (3, 700, 5), "reduce_columns_grid", [(3, 1)]),
        ((1, 64), (4096, 64), "reduce_columns_grid", [(4, 32)]),
        ((3, 1, 5), (3, 7, 5), "reduce_elements_lanes", [(1, 1)]),
        ((70_000, 1), (70_000, 32), "reduce_rows_lanes", None),
        ((70_000, 1, 5), (70_000, 7, 5), "reduce_elements_lanes", None),
        ((1, 60, 1), (20, 60, 40), "reduce_elements_lanes", None),
        ((1, 60, 1), (200, 60, 40), "reduce_any", None),
    ],
)
def test_axes_in_the_middle_are_summed_along_columns(
    monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], y: tuple[int, ...], name: str, grids: list[Any] | None
) -> None:
    """Both sums by one launch over short axes, else each by its own, or one where the other gradient is written."""
    found = [
        (launch.name.partition("<")[0], launch.grid)
        for launch in launches(monkeypatch, {"dx": Buffer(*x), "dy": Buffer(*y)})
    ]
    assert {kernel for kernel, _ in found} == {name}
    assert grids is None or [grid for _, grid in found] == grids


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((8, 1), (1, 100_000)),
        ((1, 100_000), (8, 1)),
        ((70, 1, 40), (90, 40)),
        ((90, 40), (70, 1, 40)),
        ((3, 1, 5), (3, 70_000, 5)),
        ((1, 64), (9000, 64)),
        ((1,), (12_000_000,)),
        ((40, 1), (40, 300_000)),
    ],
)
def test_partial_sums_have_room(monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Flagged ones fit the workspace."""
    op = find_op("lerp_grad")
    params = op.params(weight=0.5)
    shapes = op.infer({"x": x, "y": y}, "float32", params)
    workspace = np.zeros(cuda_grad._workspace(shapes, params), np.uint8)
    full = np.broadcast_shapes(x, y)
    gradients = {"dx": Buffer(*x), "dy": Buffer(*y)}
    summed = [one for one in gradients.values() if one.size < np.prod(full)]
    for gradient, launch in zip(summed, launches(monkeypatch, gradients, workspace=workspace), strict=True):
        assert launch.name.startswith(("reduce_rows", "reduce_columns", "reduce_elements"))
        assert launch.arguments[-1] is workspace
        partials = launch.grid[0] if "rows_once" in launch.name else launch.grid[1] * gradient.size
        assert 0 < 8 * partials <= workspace.nbytes


def test_one_minus_a_weight_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to 1, what is left of it is found in float64, where a gradient is summed over axes apart, too."""
    weight = 0.9999995
    gradients = {"dx": Buffer(1, 170, 1), "dy": Buffer(127, 1, 20)}
    (name, _, (_, tensor, task)), _ = launches(monkeypatch, gradients, weight)
    assert name.startswith("reduce_any<float")
    assert (tensor, task["sign"], task["offset"]) == (None, 0, np.float32(1 - weight))


def walked(size: int, axes: Any, strides: Any) -> np.ndarray[Any, Any]:
    """Offsets of all elements in the operands, by the arithmetic of `strided_offsets` in strides.cuh."""
    index, found = np.arange(size), np.zeros((size, strides["at"].shape[1]), np.int64)
    most = len(strides["at"])
    for axis in range(most):
        step = strides["at"][axis].astype(np.int64)
        if axis == most - 1 or (most == pointwise.AXES and axis == axes["inner"]):
            found += step * index[:, None]
            break
        value, multiplier, shift = (int(axes["length"][axis][name]) for name in ("value", "multiplier", "shift"))
        outer = ((index * multiplier >> 32) + index) >> shift
        found += step * (index - outer * value)[:, None]
        index = outer
    return found


@pytest.mark.parametrize("seed", range(60))
def test_walks_over_merged_axes_find_every_element(seed: int) -> None:
    """Offsets by merged lengths and strides are those of the view, with reversed, repeated and missing axes."""
    random = np.random.default_rng(seed)
    base = np.arange(4 * 3 * 5 * 2 * 3 * 2).reshape(4, 3, 5, 2, 3, 2)
    view = base[tuple(slice(None, None, int(step)) for step in random.choice([1, 1, -1, 2], base.ndim))]
    view = view.transpose(random.permutation(base.ndim) if seed % 2 else None)[(0,) * int(random.integers(0, 5))]
    view = np.broadcast_to(view, (2, *view.shape)) if seed % 3 == 0 and view.ndim < base.ndim else view
    steps = tuple(step // view.itemsize for step in view.strides)
    merged = merge_strides(view.shape, steps)
    axes = pointwise.most_axes(len(merged.lengths))
    structs = pointwise.axes_struct(merged, axes), pointwise.strides_struct(*merged.strides, axes=axes)
    first = int(view.ravel()[0])
    assert (walked(view.size, *structs)[:, 0] + first == view.ravel()).all()
