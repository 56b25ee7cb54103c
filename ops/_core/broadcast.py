"""Broadcasting: the common shape, the strides of operands over it, and summing back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from opgauge.ops._core.axes import sum_pairwise
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.op import Array, Shape


def broadcast_shape(*shapes: Shape) -> Shape:
    """Common shape of all `shapes` by NumPy's rule. Raises ShapeError."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    found = []
    for lengths in zip(*padded, strict=True):
        wide = {length for length in lengths if length != 1}
        if len(wide) > 1:
            msg = f"shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast"
            raise ShapeError(msg)
        found.append(wide.pop() if wide else 1)
    return tuple(found)


def reduced_axes(shape: Shape, full: Shape) -> tuple[int, ...]:
    """Axes of `full` along which `shape` is repeated when it broadcasts."""
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    return tuple(axis for axis, (own, whole) in enumerate(zip(padded, full, strict=True)) if own == 1 != whole)


def reduce_to(full: Array, shape: Shape) -> Array:
    """`full` summed over every axis along which `shape` broadcasts to it."""
    axes = reduced_axes(shape, full.shape)
    return (sum_pairwise(full, axes, keepdim=True) if axes else full).reshape(shape)


@dataclass(frozen=True, slots=True)
class MergedOperands:
    """Strides of operands over a common shape whose adjacent axes are merged if all operands allow it.

    lengths: of the merged axes, outermost first, at least one. strides: per operand and axis, in
    elements; 0 along an axis that the operand repeats.
    """

    lengths: Shape
    strides: tuple[Shape, ...]

    @property
    def size(self) -> int:
        """Elements of the common shape."""
        return prod(self.lengths)


def merge_operands(full: Shape, *shapes: Shape) -> MergedOperands:
    """Merged axes and strides of C-contiguous operands of `shapes` over `full`."""
    return merge_strides(full, *(_strides(shape, full) for shape in shapes))


def merge_strides(full: Shape, *operands: Shape) -> MergedOperands:
    """Merged axes and strides of operands with these strides over `full`, in elements."""
    lengths: list[int] = []
    merged: list[list[int]] = [[] for _ in operands]
    for axis in range(len(full)):
        length = full[axis]
        if length == 1:
            continue
        strides = [own[axis] for own in operands]
        joins = bool(lengths) and all(own[-1] == stride * length for own, stride in zip(merged, strides, strict=True))
        if joins:
            lengths[-1] *= length
            for own, stride in zip(merged, strides, strict=True):
                own[-1] = stride
        else:
            lengths.append(length)
            for own, stride in zip(merged, strides, strict=True):
                own.append(stride)
    if not lengths:
        return MergedOperands((1,), tuple((0,) for _ in operands))
    return MergedOperands(tuple(lengths), tuple(tuple(own) for own in merged))


def _strides(shape: Shape, full: Shape) -> Shape:
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    strides, step = [], 1
    for own in reversed(padded):
        strides.append(0 if own == 1 else step)
        step *= own
    return tuple(strides[::-1])
