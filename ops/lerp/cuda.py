"""lerp on CUDA: one launch, no temporary of the common shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.broadcast import MergedOperands, merge_operands
from opgauge.ops._core.dtype import FLOATS, accumulating, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shape
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch, in_turn
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.pointwise import (
    AXES,
    AXES_COMPILED,
    CONSTANTS,
    LARGEST,
    THREADS,
    VECTOR_BYTES,
    axes_struct,
    extents,
    flat,
    flat_width,
    most_axes,
    one_per_thread,
    strided,
    strides_struct,
)
from opgauge.ops._cuda.reduction.elements import elements_templates
from opgauge.ops._cuda.reduction.plan import CONSTANTS as REDUCTION
from opgauge.ops._cuda.reduction.plan import STRUCTS
from opgauge.ops._cuda.reduction.rows import beside_templates
from opgauge.ops._cuda.source import CudaSource, flag
from opgauge.ops._cuda.struct import divisor
from opgauge.ops._cuda.vectors import widest_vector

LARGE_BYTES = 256 << 20
"""Bytes of a result from which, with a weight tensor, blocks are large and fewer stores are evict_last; 128 MB is as
fast on an H200."""
CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
WIDTHS = {name: VECTOR_BYTES // dtype_info(name).itemsize for name in FLOATS}
FLAGS = ("false", "true")
LARGE_THREADS = 1024
"""Threads per block for long tensors with one weight per element."""
FEW_ELEMENTS = 1 << 15
"""Elements up to which a thread computes one: such launches are bound by latency. On an H200 vectors
take up to 6 % more for 32000 and 3 to 9 % less for 65536."""
SMALLEST = 2
"""Bytes of elements whose vectors are split between rows though no operand is dense: wider ones take 1.15 times as long
so, as each of their loads is apart from those of other threads."""
FEW_APART = 1 << 17
"""The same where rows are not whole vectors: several narrow ones take 1.1 to 1.5 times as long for 73602 and 122670."""
HALF = 0.5
"""Weight from which x and y are exchanged: blends start at the nearer one, so that they are exact at weight 1."""
GROUPED = (1, 2, 3)
"""Numbers of innermost axes that a group may have, each compiled."""
CROSSED_ROWS = range(17, 65)
"""Lengths of the shorter of two summed axes for `grad_crossed`: rows of a warp, whose sums stay in registers."""


def blend(ctype: str, tensor: str) -> str:
    """The functor of lerp by a tensor of weights or a number."""
    return f"Blend<{ctype}, {tensor}>"


def gradients(ctype: str, tensor: str = "true", subtract: str = "false") -> str:
    """The functor of lerp's gradients that are not summed; subtract: by the design document's formula."""
    return f"Gradients<{ctype}, {tensor}, {subtract}>"


def _broadcasts(dtype: str) -> tuple[str, ...]:
    """V, E and A of the kernels for operands that broadcast."""
    whole = WIDTHS[dtype]
    found = [(1, 1), *((width, whole // width) for width in (1, 2, 4, 8) if width <= whole)]
    return tuple(f"{width}, {each}, {axes}" for width, each in found for axes in AXES_COMPILED)


def _grouped(dtype: str) -> tuple[str, ...]:
    """V, E and K of the kernels for operands of many axes."""
    whole = WIDTHS[dtype]
    found = [(width, whole // width) for width in (1, 2, 4) if width < whole]
    return tuple(f"{width}, {each}, {inner}" for width, each in found for inner in GROUPED)


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for name, ctype in CTYPES.items():
        blends = [blend(ctype, tensor) for tensor in FLAGS]
        for width in (1, WIDTHS[name]):
            found.append(f"reduce_columns_grid<SummedGrad<{ctype}>, {width}, false, true>")
            functors = [*blends, *(gradients(ctype, tensor, subtract) for tensor in FLAGS for subtract in FLAGS)]
            found += [f"lerp_flat<{functor}, {width}, {kind}>" for functor in functors for kind in extents(width)]
        broadcasts = [
            *(f"lerp_broadcast<{{}}, {template}>" for template in _broadcasts(name)),
            *(f"lerp_grouped<{{}}, {template}>" for template in _grouped(name)),
            f"lerp_split<{{}}, {WIDTHS[name]}>",
        ]
        functors = [*blends, gradients(ctype)]
        found += [one.format(functor) for one in broadcasts for functor in functors]
        found.append(f"reduce_columns_grid<SummedGrad<{ctype}>, {WIDTHS[name]}, false, false>")
        elements = elements_templates("BY_ROW", "BY_COLUMN", "TWO_GROUPS", "ANY_AXES", odd=WIDTHS[name] <= 4)
        rows = beside_templates(1) + beside_templates(WIDTHS[name])
        found += [f"{kernel}<SummedGrad<{ctype}>, {template}>" for kernel, template in rows]
        found += [f"reduce_elements_lanes<SummedGrad<{ctype}>, {template}>" for template in elements]
        found.append(f"grad_crossed<{ctype}, {WIDTHS[name]}>")
        found.append(f"lerp_flat<{blend(ctype, 'true')}, {WIDTHS[name]}, LARGE, {LARGE_THREADS}>")
    return tuple(found)


SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    _expressions(),
    constants={
        **CONSTANTS,
        **REDUCTION,
        "AXES": AXES,
        "ROWS_EACH": (CROSSED_ROWS.stop - 1) // (THREADS // WARP),
    },
    structs=STRUCTS | strided(1, np.uint32) | strided(2, np.uint32) | strided(3, np.uint32),
)
"""Declared instances of kernels.cu."""


def split_weight(weight: Any, wide: Any) -> tuple[Any, Any]:
    """The weight as (tensor or None, number)."""
    return (None, wide(weight)) if isinstance(weight, float | int) else (weight, wide(0))


@kernel("lerp", "optimized", "cuda", FLOATS, prepare=True)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """One launch: flat for equal shapes, with index arithmetic otherwise."""
    result = out["out"]
    if result.size == 0:
        return lambda: None
    wide, ctype = accumulating(x), CTYPES[x.dtype.name]
    tensor, number = split_weight(weight, wide)
    if tensor is None and not number < HALF:
        x, y, number = y, x, wide(1) - number
    functor, arguments = blend(ctype, flag(tensor is not None)), (x, y, result, number if tensor is None else tensor)
    if all(array is None or array.size == result.size for array in (x, y, tensor)):
        width = flat_width(result, x, y, tensor)
        width, extent, grid, block, numbers = flat(result.size, width, x.dtype.itemsize)
        if tensor is not None and extent != "APART" and width > 1 and result.nbytes >= LARGE_BYTES:
            grid, block = (-(-int(numbers[1]) // LARGE_THREADS),), (LARGE_THREADS,)
            extent = f"LARGE, {LARGE_THREADS}"
        return bind_launch(SOURCE, f"lerp_flat<{functor}, {width}, {extent}>", grid, block, (*arguments, *numbers))
    if result.size >= LARGEST:
        return in_halves(lerp, result.shape, {"x": x, "y": y, "weight": weight}, out)
    steps = merge_operands(result.shape, x.shape, y.shape, *(() if tensor is None else (tensor.shape,)))
    launch = broadcast_launch(steps, [array for array in (x, y, tensor) if array is not None], [result])
    return bind_broadcast(launch, functor, arguments)


class BroadcastLaunch(NamedTuple):
    """Launch of a kernel for operands that broadcast.

    kind: `broadcast`, `grouped` or `split`, how its name ends. template: V, E and A; V, E and K; or V. walked: size,
    strides, axes, and elements of a group. dense: of `split`, a bit for each operand of the common shape.
    """

    kind: str
    template: str
    grid: tuple[int]
    block: tuple[int]
    walked: tuple[Any, ...]
    dense: tuple[Any, ...] = ()


def broadcast_launch(
    steps: MergedOperands, operands: Sequence[Any], results: Sequence[Any], *, given: Any = None
) -> BroadcastLaunch:
    """Launch for operands with these strides. results, given: arrays of the common shape, or None; that is read.

    Vectors are the widest that divide the rows of every operand, and a thread has as many as make 16 bytes. Rows that
    no vector divides are split between vectors if the arrays of the common shape are aligned.
    """
    itemsize = operands[0].dtype.itemsize
    whole, axes, width, each = VECTOR_BYTES // itemsize, most_axes(len(steps.lengths)), 1, 1
    along = (array for array, strides in zip(operands, steps.strides, strict=True) if strides[-1] == 1)
    results = (*results, given)
    widest = widest_vector(itemsize, steps.lengths[-1], *results, *along)
    if steps.size > (FEW_ELEMENTS if widest == whole else FEW_APART):
        width, each = widest, whole // widest
        inner = _group(steps.lengths, width, whole)
        if inner:
            grid, block = one_per_thread(-(-steps.size // whole), whole)
            relative = MergedOperands(steps.lengths, tuple(_relative(steps.lengths, own) for own in steps.strides))
            walked = (*_walked(relative, AXES), divisor(prod(steps.lengths[-inner:])))
            return BroadcastLaunch("grouped", f"{width}, {each}, {inner}", grid, block, walked)
        dense = [array.size == steps.size for array in operands]
        aligned = (array for array, is_dense in zip(operands, dense, strict=True) if is_dense)
        pays = any(dense) or given is not None or itemsize == SMALLEST
        if width == 1 and pays and widest_vector(itemsize, *results, *aligned) == whole:
            grid, block = one_per_thread(-(-steps.size // whole), whole)
            bits = np.int32(sum(is_dense << bit for bit, is_dense in enumerate(dense)))
            return BroadcastLaunch("split", f"{whole}", grid, block, _walked(steps, AXES), (bits,))
    grid, block = one_per_thread(-(-steps.size // (width * each)), width * each)
    return BroadcastLaunch("broadcast", f"{width}, {each}, {axes}", grid, block, _walked(steps, axes))


def bind_broadcast(launch: BroadcastLaunch, functor: str, arguments: tuple[Any, ...]) -> Bound:
    """The launch for a functor and its four arguments."""
    expression = f"lerp_{launch.kind}<{functor}, {launch.template}>"
    return bind_launch(SOURCE, expression, launch.grid, launch.block, (*arguments, *launch.walked, *launch.dense))


def _group(lengths: Shape, width: int, whole: int) -> int:
    """Innermost axes whose product is at least the elements of a warp; 0 if others are too few, or vectors are whole.

    Up to three axes in vectors are walked without branches, and whole vectors by one walk each.
    """
    if width == whole or len(lengths) < (3 if width == 1 else 4):
        return 0
    most = (inner for inner in GROUPED if inner < len(lengths) and prod(lengths[-inner:]) >= WARP * whole)
    return next(most, 0)


def _relative(lengths: Shape, strides: Shape) -> Shape:
    """Strides less those of the whole axis within each, modulo 2^32."""
    inner = (length * stride for length, stride in zip(lengths[1:], strides[1:], strict=True))
    return (*((stride - whole) % (1 << 32) for stride, whole in zip(strides, inner, strict=False)), strides[-1])


def _walked(steps: MergedOperands, axes: int) -> tuple[Any, ...]:
    return np.uint32(steps.size), strides_struct(*steps.strides, axes=axes, dtype=np.uint32), axes_struct(steps, axes)


def in_halves(bind: Callable[..., Bound], full: Shape, given: dict[str, Any], out: dict[str, Any]) -> Bound:
    """Launches for 2^31 elements of shape `full` or more, for each half of the first axis longer than one.

    given: arrays that broadcast to `full`, and numbers. out: arrays of that shape, or None.
    """
    axis = next(axis for axis, length in enumerate(full) if length > 1)
    middle = full[axis] // 2 // VECTOR_BYTES * VECTOR_BYTES or full[axis] // 2

    def half(array: Any, part: slice) -> Any:
        own = axis - len(full) + len(getattr(array, "shape", ()))
        return array if own < 0 or array.shape[own] == 1 else array[(slice(None),) * own + (part,)]

    first, second = (
        bind(
            **{name: half(array, part) for name, array in given.items()},
            out={name: half(array, part) for name, array in out.items()},
        )
        for part in (slice(middle), slice(middle, None))
    )
    return in_turn(first, second)
