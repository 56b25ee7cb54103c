"""Inner loop of a matrix product in Numba kernels, with a register-resident tile.

A tile is ROWS by `tile_columns` numbers, one vector per register. On one core that is as fast as a BLAS, it needs no
threads besides Numba's, and the code after a product finds the result in cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features, initialize_native_asmparser
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from opgauge.ops._cpu.jit import address
from opgauge.ops._cpu.tile.assembly import Listed, Product, listed_sums_of, sums_of
from opgauge.ops._cpu.tile.jit_lanes import after, fma, splat, unaligned, vector_type

FEATURES = get_host_cpu_features()
WIDE = bool(FEATURES.get("avx512f", False))
IN_ASSEMBLY = bool(FEATURES.get("avx2", False) and FEATURES.get("fma", False))
"""Features of the processor: whether AVX-512, and whether the assembly's instructions are available."""
if IN_ASSEMBLY:
    initialize_native_asmparser()
VECTOR_BYTES = 64 if WIDE else 32
VECTORS = 2
ROWS = 12 if WIDE else 6
"""Vectors and rows of a tile: with their factors they fill the 32 or 16 registers."""
LISTED_ROWS, LISTED_VECTORS = (8, 3) if WIDE else (6, 2)
"""Rows and vectors of a tile of `multiply_listed`, whose rows are few channels, often a multiple of eight."""
DEPTH = 256
"""Depth of a partial product: its operands fit the first-level cache, its rounding is that of a short sum."""
GROUPS = 3
GROUP = ROWS // GROUPS
"""Consecutive rows of a tile; each group of rows can have its own start."""
SHORT_ROWS = 2 * GROUP
"""Rows of a tile of two groups: most batches are powers of two, which are whole tiles of so many images."""


@njit(error_model="numpy")
def tile_columns(like: Any) -> int:
    """Columns of a tile for elements of the array `like`."""
    return int(VECTORS * VECTOR_BYTES // like.itemsize)


@intrinsic
def multiply_tile(
    typingctx: Any,
    a: Any,
    a_start: Any,
    a_row: Any,
    a_step: Any,
    b: Any,
    b_start: Any,
    b_step: Any,
    depth: Any,
    out: Any,
    out_start: Any,
    out_row: Any,
) -> Any:
    """Add to out[i, j] the sum over k < depth of a[i, k] b[k, j], for a tile's rows i and columns j.

    Arrays are flat: a[i, k] is a[a_start + i a_row + k a_step], b[k, j] is b[b_start + k b_step + j].
    a_start may be up to GROUPS starts: i then counts from each of them, up to GROUP. The sum is complete before
    it is added.
    """
    del typingctx, a_row, a_step, b_start, b_step, depth, out_start, out_row
    places = (types.intp,) * 3
    signature = types.void(a, _starts(a_start), *places[1:], b, *places, out, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums = _sum_tile(context, builder, signature, arguments)
        _write_tile(context, builder, sums, (signature.args[8], *arguments[8:]), (signature.args[8], *arguments[8:]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply_tile_onto(
    typingctx: Any,
    a: Any,
    a_start: Any,
    a_row: Any,
    a_step: Any,
    b: Any,
    b_start: Any,
    b_step: Any,
    depth: Any,
    base: Any,
    base_start: Any,
    base_row: Any,
    out: Any,
    out_start: Any,
    out_row: Any,
) -> Any:
    """Set out to base plus the product; without base, to the product. Arguments as in `multiply_tile`."""
    del typingctx, a_row, a_step, b_start, b_step, depth, base_start, base_row, out_start, out_row
    places = (types.intp,) * 3
    ends = (base, types.intp, types.intp, out, types.intp, types.intp)
    signature = types.void(a, _starts(a_start), *places[1:], b, *places, *ends)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums = _sum_tile(context, builder, signature, arguments)
        base, out = ((signature.args[first], *arguments[first : first + 3]) for first in (8, 11))
        size = context.make_array(base[0])(context, builder, base[1]).nitems
        with builder.if_else(builder.icmp_signed(">", size, ir.Constant(size.type, 0))) as (adds, replaces):
            with adds:
                _write_tile(context, builder, sums, base, out)
            with replaces:
                _write_tile(context, builder, sums, None, out)
        return context.get_dummy_value()

    return signature, generate


@njit(error_model="numpy")
def listed_columns(like: Any) -> int:
    """Columns of a tile of `multiply_listed` for elements of the array `like`."""
    return int(LISTED_VECTORS * VECTOR_BYTES // like.itemsize)


@intrinsic
def multiply_listed(
    typingctx: Any,
    a: Any,
    a_start: Any,
    b: Any,
    b_start: Any,
    places: Any,
    first: Any,
    depth: Any,
    out: Any,
    out_start: Any,
    out_row: Any,
    adds: Any,
) -> Any:
    """Set out[i, j] to the sum over k < depth of a[i, k] b[k, j], for LISTED_ROWS rows i and `listed_columns` j.

    Arrays are flat: a[i, k] is a[a_start + LISTED_ROWS k + i], b[k, j] is b[b_start + places[first + k] + j]. If
    `adds`, the sum is added to out.
    """
    del typingctx, a_start, b_start, first, depth, out_start, out_row, adds
    index = types.intp
    signature = types.void(a, index, b, index, places, index, index, out, index, index, types.boolean)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums = _sum_listed(context, builder, signature, arguments)
        out, adds = (signature.args[7], *arguments[7:10]), arguments[10]
        with builder.if_else(builder.trunc(adds, ir.IntType(1))) as (then, otherwise):
            with then:
                _write_tile(context, builder, sums, out, out)
            with otherwise:
                _write_tile(context, builder, sums, None, out)
        return context.get_dummy_value()

    return signature, generate


def _sum_listed(context: Any, builder: Any, signature: Any, arguments: Any) -> list[list[Any]]:
    """The sums of a tile of listed vectors, by row and vector."""
    a, a_start, b, b_start, places, first, depth = arguments[:7]
    kinds, dtype, number = signature.args, signature.args[0].dtype, context.get_value_type(types.intp)
    vector = vector_type(context.get_value_type(dtype), dtype, VECTOR_BYTES)
    if IN_ASSEMBLY:
        byte = ir.IntType(8)
        operands = Listed(
            address(context, builder, kinds[0], a, a_start, byte),
            address(context, builder, kinds[2], b, b_start, byte),
            address(context, builder, kinds[4], places, first, byte),
            depth,
        )
        return listed_sums_of(builder, operands, LISTED_ROWS, LISTED_VECTORS, vector, wide=WIDE)

    def start_of(step: Any) -> Any:
        place = address(context, builder, kinds[4], places, builder.add(first, step), number)
        return builder.add(b_start, builder.load(place))

    rows = [builder.add(a_start, ir.Constant(number, row)) for row in range(LISTED_ROWS)]
    step = ir.Constant(number, LISTED_ROWS)
    return _sum_by_llvm(context, builder, (kinds[0], a, rows, step), (kinds[2], b, start_of), depth, LISTED_VECTORS)


def _starts(given: Any) -> Any:
    """The type of a tile's start, or of its groups' starts."""
    return types.UniTuple(types.intp, len(given)) if isinstance(given, types.BaseTuple) else types.intp


def _starts_of(builder: Any, kind: Any, a_start: Any, a_row: Any) -> list[Any]:
    """First row of each group."""
    if isinstance(kind, types.BaseTuple):
        return [builder.extract_value(a_start, group) for group in range(len(kind))]
    return [after(builder, a_start, group * GROUP, a_row) for group in range(GROUPS)]


def _sum_tile(context: Any, builder: Any, signature: Any, arguments: Any) -> list[list[Any]]:
    """The sums of a tile, by row and vector."""
    a, a_start, a_row, a_step, b, b_start, b_step, depth = arguments[:8]
    dtype = signature.args[0].dtype
    vector = vector_type(context.get_value_type(dtype), dtype, VECTOR_BYTES)
    starts = _starts_of(builder, signature.args[1], a_start, a_row)
    if not IN_ASSEMBLY:
        rows = [after(builder, starts[row // GROUP], row % GROUP, a_row) for row in range(len(starts) * GROUP)]
        given = (signature.args[4], b, lambda step: builder.add(b_start, builder.mul(step, b_step)))
        return _sum_by_llvm(context, builder, (signature.args[0], a, rows, a_step), given, depth, VECTORS)
    nbytes, byte = ir.Constant(depth.type, dtype.bitwidth // 8), ir.IntType(8)
    product = Product(
        [address(context, builder, signature.args[0], a, start, byte) for start in starts],
        builder.mul(a_row, nbytes),
        builder.mul(a_step, nbytes),
        address(context, builder, signature.args[4], b, b_start, byte),
        builder.mul(b_step, nbytes),
        depth,
    )
    return sums_of(builder, product, len(starts) * GROUP, VECTORS, vector, wide=WIDE)


def _sum_by_llvm(context: Any, builder: Any, a: Any, b: Any, depth: Any, vectors: int) -> list[list[Any]]:
    """The sums of a tile on any processor, by row and vector.

    a: array type, array, place of each row and distance between steps; b: array type, array and place of a step.
    """
    (a_kind, a, rows, a_step), (b_kind, b, start_of), number = a, b, depth.type
    dtype = a_kind.dtype
    vector = vector_type(context.get_value_type(dtype), dtype, VECTOR_BYTES)
    multiply_add = fma(builder, vector, dtype)
    sums = [[cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(vectors)] for _ in rows]
    for held in (held for row in sums for held in row):  # alloca_once initializes only at the start of the function
        builder.store(ir.Constant(vector, None), held)
    elements = context.make_array(a_kind)(context, builder, a).data
    with cgutils.for_range(builder, depth) as loop:
        first = start_of(loop.index)
        columns = []
        for column in range(vectors):
            index = builder.add(first, ir.Constant(number, column * vector.count))
            place = address(context, builder, b_kind, b, index, vector)
            columns.append(unaligned(builder.load(place), dtype))
        step = builder.mul(loop.index, a_step)
        for row, place in enumerate(rows):
            factor = splat(builder, builder.load(builder.gep(elements, [builder.add(place, step)])), vector)
            for column, held in enumerate(sums[row]):
                builder.store(builder.call(multiply_add, [factor, columns[column], builder.load(held)]), held)
    return [[builder.load(held) for held in row] for row in sums]


def _write_tile(context: Any, builder: Any, sums: list[list[Any]], base: Any, out: Any) -> None:
    """Store a tile, added to another; both are array type, array, start and distance between rows."""
    for row, values in enumerate(sums):
        for column, total in enumerate(values):
            value = total
            if base is not None:
                before = builder.load(_tile_address(context, builder, base, row, column, value.type))
                value = builder.fadd(unaligned(before, base[0].dtype), value)
            place = _tile_address(context, builder, out, row, column, value.type)
            unaligned(builder.store(value, place), out[0].dtype)


def _tile_address(context: Any, builder: Any, place: Any, row: int, column: int, vector: Any) -> Any:
    kind, array, start, pitch = place
    index = builder.add(after(builder, start, row, pitch), ir.Constant(start.type, column * vector.count))
    return address(context, builder, kind, array, index, vector)
