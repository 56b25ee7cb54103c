"""Lanes: vectors of numbers in registers, loaded from flat arrays inside Numba kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from opgauge.ops._cpu.jit import INNER, address, widen

LANES_BYTES = 32
"""Bytes of a `lanes` value."""


class Lanes(types.Type):  # type: ignore[misc]  # numba is untyped
    """A vector of numbers in a register."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(
            manager, kind, vector_type(manager.lookup(kind.dtype).get_value_type(), kind.dtype, LANES_BYTES)
        )


def vector_type(element: Any, dtype: Any, nbytes: int) -> Any:
    """LLVM's type of a vector of as many bytes."""
    return ir.VectorType(element, nbytes * 8 // dtype.bitwidth)


def unaligned(instruction: Any, dtype: Any) -> Any:
    """The load or store, aligned to one element only."""
    instruction.align = dtype.bitwidth // 8
    return instruction


def splat(builder: Any, value: Any, vector: Any) -> Any:
    """A vector whose lanes all equal `value`."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def fma(builder: Any, vector: Any, dtype: Any) -> Any:
    """LLVM's fused multiply-add of vectors."""
    kind = ir.FunctionType(vector, [vector] * 3)
    name = f"llvm.fma.v{vector.count}f{dtype.bitwidth}"
    return cgutils.get_or_insert_function(builder.module, kind, name)


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """The lanes of a flat array from `index` on."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, vector = signature.args[0], context.get_value_type(signature.return_type)
        array, index = arguments
        return unaligned(builder.load(address(context, builder, kind, array, index, vector)), kind.dtype)

    return Lanes(array.dtype)(array, index), generate


@intrinsic
def load_widened(typingctx: Any, array: Any, index: Any, like: Any) -> Any:
    """The lanes of a flat array from `index` on, in the dtype of the array `like`: 16-bit floats are widened."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, wide = signature.args[0], context.get_value_type(signature.return_type)
        stored = ir.VectorType(context.get_value_type(kind.dtype), wide.count)
        place = address(context, builder, kind, arguments[0], arguments[1], stored)
        return _widened(builder, kind.dtype, unaligned(builder.load(place), kind.dtype), wide)

    return Lanes(like.dtype)(array, index, like), generate


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Store lanes to a flat array from `index` on."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        kind = signature.args[0]
        place = address(context, builder, kind, array, index, value.type)
        unaligned(builder.store(value, place), kind.dtype)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def store_pairs(typingctx: Any, array: Any, index: Any, first: Any, second: Any) -> Any:
    """Store two vectors to a flat array from `index` on, lane by lane in turn."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, *pair = arguments
        kind, count = signature.args[0], pair[0].type.count
        order = [lane // 2 + count * (lane % 2) for lane in range(2 * count)]
        value = builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(ir.IntType(32), 2 * count), order))
        unaligned(builder.store(value, address(context, builder, kind, array, index, value.type)), kind.dtype)
        return context.get_dummy_value()

    return types.void(array, index, first, second), generate


@intrinsic
def spread(typingctx: Any, value: Any) -> Any:
    """Lanes that all equal `value`."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splat(builder, arguments[0], context.get_value_type(signature.return_type))

    return Lanes(value)(value), generate


@intrinsic
def multiply_add(typingctx: Any, first: Any, second: Any, addend: Any) -> Any:
    """First times second plus addend, lane by lane."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        return builder.call(fma(builder, arguments[0].type, signature.args[0].dtype), arguments)

    return first(first, second, addend), generate


@intrinsic
def total(typingctx: Any, lanes: Any) -> Any:
    """Sum of the lanes, by halves."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        (value,) = arguments
        count = value.type.count
        while count > 1:
            count //= 2
            halves = [
                builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(ir.IntType(32), count), list(part)))
                for part in (range(count), range(count, 2 * count))
            ]
            value = builder.fadd(*halves)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return lanes.dtype(lanes), generate


@intrinsic
def turn(typingctx: Any, given: Any, start: Any, pitch: Any, out: Any, out_start: Any, out_pitch: Any) -> Any:
    """Transpose a square of lanes by lanes; 16-bit floats are widened.

    Arrays are flat: out[out_start + j out_pitch + i] is given[start + i pitch + j].
    """
    del typingctx, start, pitch, out_start, out_pitch

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, start, pitch, out, out_start, out_pitch = arguments
        source, target = signature.args[0], signature.args[3]
        wide = vector_type(context.get_value_type(target.dtype), target.dtype, LANES_BYTES)
        stored = ir.VectorType(context.get_value_type(source.dtype), wide.count)
        rows = []
        for row in range(wide.count):
            place = address(context, builder, source, given, after(builder, start, row, pitch), stored)
            rows.append(_widened(builder, source.dtype, unaligned(builder.load(place), source.dtype), wide))
        for column, value in enumerate(_turned(builder, rows)):
            place = address(context, builder, target, out, after(builder, out_start, column, out_pitch), wide)
            unaligned(builder.store(value, place), target.dtype)
        return context.get_dummy_value()

    return types.void(given, types.intp, types.intp, out, types.intp, types.intp), generate


def _widened(builder: Any, dtype: Any, value: Any, wide: Any) -> Any:
    """`opgauge.ops._cpu.jit.widen` of a vector."""
    if dtype == types.uint16:
        return builder.fpext(builder.bitcast(value, ir.VectorType(ir.HalfType(), wide.count)), wide)
    if dtype == types.int16:
        bits = ir.VectorType(ir.IntType(32), wide.count)
        return builder.bitcast(builder.shl(builder.zext(value, bits), ir.Constant(bits, [16] * wide.count)), wide)
    return value


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Columns of a square of vectors, by recursive exchange of quarters."""
    count, half = len(rows), len(rows) // 2
    while half:
        picked = [
            [k if not k & half else count + k - half for k in range(count)],
            [k + half if not k & half else count + k for k in range(count)],
        ]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), count), mask) for mask in picked]
        for row in range(count):
            if not row & half:
                pair = rows[row], rows[row + half]
                rows[row], rows[row + half] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        half //= 2
    return rows


@intrinsic
def lanes_of(typingctx: Any, like: Any) -> Any:
    """Lanes per vector for elements of the array `like`: a constant, so that loops in such steps have no division."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del builder, signature, arguments
        return context.get_constant(types.intp, LANES_BYTES * 8 // like.dtype.bitwidth)

    return types.intp(like), generate


def after(builder: Any, start: Any, count: int, step: Any) -> Any:
    """`start + count step`."""
    return builder.add(start, builder.mul(ir.Constant(start.type, count), step))


@njit(**INNER)
def turn_block(
    given: Any, start: int, pitch: int, rows: int, columns: int, out: Any, out_start: int, out_pitch: int
) -> None:
    """Transpose rows by columns like `turn`: by squares, the last of which overlap others, if both are long enough."""
    lanes = lanes_of(out)
    if rows >= lanes and columns >= lanes:
        for row in range(0, rows, lanes):
            i = min(row, rows - lanes)
            for column in range(0, columns, lanes):
                j = min(column, columns - lanes)
                turn(given, start + i * pitch + j, pitch, out, out_start + j * out_pitch + i, out_pitch)
        return
    for j in range(columns):
        for i in range(rows):
            out[np.uintp(out_start + j * out_pitch + i)] = widen(given[np.uintp(start + i * pitch + j)])
