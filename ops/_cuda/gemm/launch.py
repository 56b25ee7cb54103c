"""Sources of matrix products and the launch of a `GemmConfig`.

float32 is multiplied to float32 accuracy on the tensor cores (3xTF32), 16-bit types with float32 accumulation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.plans import announce
from opgauge.ops._cuda.bind import in_turn
from opgauge.ops._cuda.gemm import hopper
from opgauge.ops._cuda.gemm.hopper import HALF_DTYPES, LARGEST_BLOCK
from opgauge.ops._cuda.gemm.problem import EXACT, TF32, TILE, Alignment, GemmConfig, GemmProblem, Matrix, expression
from opgauge.ops._cuda.gemm.select import DTYPES, SMALL_TILE, THREADS, access_widths, select, small_widths
from opgauge.ops._cuda.source import CudaSource, current_gpu
from opgauge.ops._cuda.struct import DIVISOR, address, pack
from opgauge.ops._cuda.tensor_map import tensor_map

LAST = (False, True)
"""Whether channels are last, or results are stored by TMA: template arguments."""
_VIEW = np.dtype(
    [("image", np.int64), ("row", np.int64), ("group", np.int64), ("split", np.int64), ("post", DIVISOR), ("pad", "V4")]
)
"""`View` of view.cuh: strides in elements."""


def _struct(*numbers: str, longs: tuple[str, ...] = (), divisors: tuple[str, ...] = (), end: int = 0) -> Any:
    """Dtype of 32-bit numbers, 64-bit ones, divisors and `end` bytes of padding."""
    kinds = {"ahead": "u4", "pad": "V4"}
    fields: list[Any] = [(name, kinds.get(name, "i4")) for name in numbers]
    fields += [(name, np.int64) for name in longs] + [(name, DIVISOR) for name in divisors]
    return np.dtype([*fields, ("end", f"V{end}")] if end else fields)


def _gemm_expressions() -> tuple[str, ...]:
    factors, single = ((False, False), (True, False)), ("float32", "float32")
    found = [f"add_splits<{dtype_info(dtype).ctype}>" for dtype in DTYPES]
    found += [
        expression("gemm", dtype, result, *k_major, *widths, EXACT, TILE)
        for dtype, k_major in product(DTYPES, (*factors, (True, True)))
        for result in sorted({dtype, "float32"})
        for widths in access_widths(dtype, result, k_major)
    ]
    found += [
        expression("gemm", dtype, result, *k_major, *small_widths(dtype, result), EXACT, SMALL_TILE)
        for dtype, k_major in product(DTYPES, factors)
        for result in sorted({dtype, "float32"})
    ]
    widths_k_major = access_widths(*single, factors[1])
    return (*found, *(expression("gemm", *single, *factors[1], *widths, TF32, TILE) for widths in widths_k_major))


class Template(NamedTuple):
    """A kernel: its source, its struct, and the shared memory that its instances may use.

    limit: bytes per block; 0 for those of the launch, which all launches of an instance share. carveout: whether the
    multiprocessor's cache becomes shared memory as far as possible, else fewer blocks are resident.
    """

    source: CudaSource
    struct: Any
    limit: int = LARGEST_BLOCK
    carveout: bool = False


def _template(file: str, struct: str, dtype: Any, instances: tuple[str, ...], **more: Any) -> Template:
    return Template(CudaSource(__file__, file, instances, structs={"View": _VIEW, struct: dtype}), dtype, **more)


def _instances(name: str, *arguments: tuple[str | int, ...]) -> tuple[str, ...]:
    """Instances of a template in 16-bit types."""
    return tuple(expression(name, dtype, *each) for dtype in HALF_DTYPES for each in arguments)


_FILTER = ("filter_rows", "filter_columns", "dy_columns", "channels")
TEMPLATES = {
    "gemm": _template(
        "gemm.cu",
        "Size",
        _struct("rows", "columns", "depth", "share", divisors=("row_tiles",)),
        _gemm_expressions(),
        limit=0,
        carveout=True,
    ),
    "persistent_wgmma": _template(
        "hopper.cu",
        "Tiles",
        _struct("rows", "columns", "depth", "count", divisors=("row_tiles",)),
        _instances("persistent_wgmma", *product(LAST, hopper.WGMMA_STAGES)),
        limit=0,
        carveout=True,
    ),
    "persistent": _template(
        "persistent.cu",
        "PersistentSize",
        _struct("streamed", "depth", "tiles", "step", "slots", divisors=("resident",)),
        _instances(
            "persistent",
            *(
                (*tile, width, last)
                for last in LAST
                for tile, width in product(hopper.PERSISTENT_TILES[last], hopper.WIDTHS[last])
            ),
        ),
        carveout=True,
    ),
    "ping_pong": _template(
        "ping_pong.cu",
        "PingPongSize",
        _struct("pixels", "depth", "tiles", "step", "ahead", divisors=("resident",)),
        _instances("ping_pong", *((width, last) for last in LAST for width in hopper.WIDTHS[last])),
    ),
    "b_stationary_shared": _template(
        "stationary_shared.cu",
        "StationarySize",
        _struct(
            *("depth", "stages", "tiles", "step", *_FILTER, "pixels", "pad"),
            longs=("pitch",),
            divisors=("resident",),
            end=4,
        ),
        _instances("b_stationary_shared", ()),
    ),
    "a_stationary_registers": _template(
        "stationary_registers.cu",
        "Strips",
        _struct(
            *("strips", "step", "filter_rows", "filter_columns", "dy_rows", "channels", "pixels", "pad"),
            longs=("image",),
            divisors=("each", "resident"),
        ),
        _instances("a_stationary_registers", *product(hopper.STRIP_SLABS, LAST)),
    ),
    "cooperative": _template(
        "cooperative.cu",
        "Tiles",
        _struct(
            *("stages", "pixels", "added", *_FILTER, "count", "images", "each"),
            longs=("pitch",),
            divisors=("shares", "by_pixels"),
        ),
        (
            *_instances("transpose_images", ()),
            *_instances("cooperative", *((last, *tile) for last in LAST for tile in hopper.COOPERATIVE_TILES[last])),
        ),
    ),
}
"""Kernels by name."""


def multiply(problem: GemmProblem, a: Any, b: Any, d: Any, addend: Any = None, workspace: Any = None) -> Bound:
    """Compute d = a b (+ addend) on the current device, with a workspace of `select`'s bytes if it asks for any."""
    alignment = Alignment(*map(_alignment, (a, b, d, addend, workspace)))
    problem = replace(problem, alignment=alignment)
    return launch(select(problem, current_gpu()), problem, a, b, d, addend, workspace)


def _alignment(array: Any) -> int:
    at = address(array)
    return min(at & -at, 16) or 16


def launch(config: GemmConfig, problem: GemmProblem, a: Any, b: Any, d: Any, addend: Any, workspace: Any) -> Bound:
    """The launches of `config`: before it, images of b are transposed, or after it, splits added up in fixed order."""
    announce(config)
    arrays = {"a": a, "b": b, "addend": addend, "target": d}
    source, struct, limit, carveout = TEMPLATES[config.template]
    if config.splits > 1:
        arrays |= {"target": workspace.view(np.float32)[: config.splits * d.size], "addend": None}
    elif config.extra_grid:
        arrays["transposed"] = workspace.view(b.dtype)[: b.size]
    function = source.function(config.kernel)
    function.max_dynamic_shared_size_bytes = limit or config.shared_bytes
    if carveout:
        function.preferred_shared_memory_carveout = 100  # per cent
    maps = [tensor_map(arrays[name], *sizes) for name, *sizes in config.maps]
    views = () if maps else (_view(config, problem, name, d.size) for name in config.arrays if name != "addend")
    arguments = (*maps, *(arrays[name] for name in config.arrays), *views, pack(struct, config.numbers))
    grid, block, shared = config.grid, (config.threads,), config.shared_bytes

    def run(_mapped: Any = arrays) -> None:  # the arrays must live as long as their maps
        function(grid, block, arguments, shared_mem=shared)

    if config.splits > 1:
        return in_turn(run, _add_splits(config, problem, arrays["target"], addend, d))
    if config.extra_grid:
        return in_turn(_transpose(config, problem, b, arrays["transposed"]), run)
    return run


def _view(config: GemmConfig, problem: GemmProblem, name: str, elements: int) -> Any:
    """`View` of view.cuh."""
    number = ("a", "b", "target").index(name)
    matrix: Matrix = (problem.a, problem.b, problem.d)[number]
    split = elements if name == "target" and config.splits > 1 else 0
    post = matrix.post or max(problem.lengths[number], 1)
    numbers = {"image": matrix.image, "row": matrix.stride, "group": matrix.group, "split": split, "post": post}
    return pack(_VIEW, numbers)


def _add_splits(config: GemmConfig, problem: GemmProblem, partial: Any, addend: Any, d: Any) -> Bound:
    function = TEMPLATES["gemm"].source.function(expression("add_splits", problem.result))
    arguments = (partial, addend, d, np.int64(d.size), np.int32(config.splits))
    return lambda: function(config.extra_grid, (THREADS,), arguments)


def _transpose(config: GemmConfig, problem: GemmProblem, b: Any, transposed: Any) -> Bound:
    function = TEMPLATES["cooperative"].source.function(expression("transpose_images", problem.dtype))
    arguments = (b, transposed, np.int32(problem.b.image // problem.b.post), np.int32(problem.b.post))
    return lambda: function(config.extra_grid, (THREADS,), arguments)
