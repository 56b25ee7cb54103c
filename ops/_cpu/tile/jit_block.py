"""Blocks of sums in registers: rows by columns of vectors, which share the loads of values and of factors."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from opgauge.ops._cpu.jit import address
from opgauge.ops._cpu.tile.jit_lanes import after, fma, unaligned, vector_type


class VectorBlock(types.Type):  # type: ignore[misc]  # numba is untyped
    """Rows by columns of vectors of `nbytes`; the type tells the shape, so that a function is compiled for each."""

    def __init__(self, dtype: Any, rows: int, columns: int, nbytes: int) -> None:
        self.dtype, self.rows, self.columns, self.nbytes = dtype, rows, columns, nbytes
        super().__init__(name=f"VectorBlock({dtype}, {rows}, {columns}, {nbytes})")


@register_model(VectorBlock)
class _VectorBlockModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        vector = vector_type(manager.lookup(kind.dtype).get_value_type(), kind.dtype, kind.nbytes)
        super().__init__(manager, kind, ir.ArrayType(vector, kind.rows * kind.columns))


@intrinsic(prefer_literal=True)
def zeros(typingctx: Any, like: Any, rows: Any, columns: Any, nbytes: Any) -> Any:
    """A block of zeros for elements of the array `like`; the shape is of constants."""
    del typingctx
    kind = VectorBlock(like.dtype, rows.literal_value, columns.literal_value, nbytes.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del builder, arguments
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return kind(like, rows, columns, nbytes), generate


@intrinsic
def multiply_onto(
    typingctx: Any, block: Any, given: Any, start: Any, pitch: Any, factors: Any, first: Any, step: Any
) -> Any:
    """The block plus given from `start + i pitch` on times factors from `first + j step` on, for row i and column j."""
    del typingctx, start, pitch, first, step

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, given, start, pitch, factors, first, step = arguments
        kind, vector = signature.args[0], arguments[0].type.element
        multiply_add = fma(builder, vector, kind.dtype)

        def loaded(array_kind: Any, array: Any, index: Any) -> Any:
            return unaligned(builder.load(address(context, builder, array_kind, array, index, vector)), kind.dtype)

        columns = [
            loaded(signature.args[4], factors, after(builder, first, column, step)) for column in range(kind.columns)
        ]
        for row in range(kind.rows):
            value = loaded(signature.args[1], given, after(builder, start, row, pitch))
            for column, factor in enumerate(columns):
                place = row * kind.columns + column
                total = builder.call(multiply_add, [value, factor, builder.extract_value(block, place)])
                block = builder.insert_value(block, total, place)
        return block

    return block(block, given, types.intp, types.intp, factors, types.intp, types.intp), generate


@intrinsic
def store_block(typingctx: Any, out: Any, start: Any, pitch: Any, step: Any, block: Any) -> Any:
    """Store the vector of row i and column j to a flat array from `start + i pitch + j step` on."""
    del typingctx, start, pitch, step

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, start, pitch, step, block = arguments
        kind, out_kind = signature.args[4], signature.args[0]
        for place in range(kind.rows * kind.columns):
            row, column = divmod(place, kind.columns)
            index = after(builder, after(builder, start, row, pitch), column, step)
            value = builder.extract_value(block, place)
            unaligned(builder.store(value, address(context, builder, out_kind, out, index, value.type)), out_kind.dtype)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.intp, types.intp, block), generate


def _shape(part: str) -> Any:
    """An intrinsic that returns a part of a block's shape, a constant."""

    @intrinsic
    def part_of(typingctx: Any, block: Any) -> Any:
        del typingctx
        lanes = block.nbytes * 8 // block.dtype.bitwidth
        number = {"rows": block.rows, "columns": block.columns, "lanes": lanes}[part]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del builder, signature, arguments
            return context.get_constant(types.intp, number)

        return types.intp(block), generate

    return part_of


rows_of, columns_of, width_of = _shape("rows"), _shape("columns"), _shape("lanes")
"""Rows, columns and lanes of a vector of a block."""
