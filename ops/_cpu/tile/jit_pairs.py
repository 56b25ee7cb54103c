"""Blocks of sums of products of bfloat16, in pairs: by AMX, or by the dot products of AVX512_BF16.

Both take the same operands. Subnormal numbers count as zero.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import config, njit, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.tile import jit_amx as amx
from opgauge.ops._cpu.tile.assembly import PairRuns, run_sums_of
from opgauge.ops._cpu.tile.jit import IN_ASSEMBLY

BLOCK = amx.BLOCK
"""Rows and columns of a block of sums."""
ROWS, LANES = 8, 16
"""Rows of a tile of sums in registers, and columns of one of its vectors."""
_FLOAT_BYTES = 4
_FEATURES = (config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()).split(",")
IN_TILES = "+amx-bf16" in _FEATURES
"""Whether products are AMX's: a constant of compiled functions, whatever the system allows."""


@cache
def is_available() -> bool:
    """Whether this process can multiply pairs, by AMX or else by AVX512_BF16."""
    if IN_TILES:
        return amx.is_available()
    return IN_ASSEMBLY and config.CPU_NAME is None and "+avx512bf16" in _FEATURES


def _multiply_pairs(vectors: int) -> Any:
    """An intrinsic that stores ROWS by `vectors` of sums of pairs; all operands are addresses, distances and counts."""

    @intrinsic
    def multiply(
        typingctx: Any,
        a: Any,
        a_row: Any,
        b: Any,
        b_step: Any,
        places: Any,
        runs: Any,
        pairs: Any,
        out: Any,
        out_row: Any,
    ) -> Any:
        del typingctx, a, a_row, b, b_step, places, runs, pairs, out, out_row

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            *operands, out, out_row = arguments
            vector = ir.VectorType(ir.FloatType(), LANES)
            for row, values in enumerate(run_sums_of(builder, PairRuns(*operands), ROWS, vectors, vector)):
                first = builder.add(out, builder.mul(out_row, ir.Constant(out.type, row)))
                for column, value in enumerate(values):
                    place = builder.add(first, ir.Constant(out.type, column * LANES * _FLOAT_BYTES))
                    builder.store(value, builder.inttoptr(place, vector.as_pointer())).align = _FLOAT_BYTES
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 9), generate

    return multiply


_multiply_one, _multiply_two = _multiply_pairs(1), _multiply_pairs(2)


@njit(**INNER)
def _by_dot_products(rows: Any, columns: Any, places: Any, steps: int, used: tuple[int, int], sums: int) -> None:
    row, row_stride, _, row_step = rows
    column, column_stride, _, _ = columns
    runs, pairs = places.size // 2, steps * row_step // _FLOAT_BYTES
    for first in range(0, used[0], ROWS):
        left, into = row + first * row_stride, sums + first * BLOCK * _FLOAT_BYTES
        given = (left, row_stride, column, column_stride, amx.address_of(places), runs, pairs, into)
        if used[1] > LANES:
            _multiply_two(*given, BLOCK * _FLOAT_BYTES)
        else:
            _multiply_one(*given, BLOCK * _FLOAT_BYTES)


@njit(**INNER)
def _by_tiles(rows: Any, columns: Any, places: Any, steps: int, _used: tuple[int, int], sums: int) -> None:
    amx.multiply_block(rows, columns, places, steps, sums)


@njit(**INNER)
def _begin_tiles(configuration: Any) -> None:
    amx.load_configuration(amx.address_of(configuration))


@njit(**INNER)
def _end_tiles() -> None:
    amx.release()


@njit(**INNER)
def _begin_none(_configuration: Any) -> None:
    pass


@njit(**INNER)
def _end_none() -> None:
    pass


begin_products, multiply_block, end_products = (
    (_begin_tiles, _by_tiles, _end_tiles) if IN_TILES else (_begin_none, _by_dot_products, _end_none)
)
"""Before products of a thread, with AMX's configuration; a block; and after them.

A block of `used` rows and columns, at most BLOCK of each, is stored as (BLOCK, BLOCK) of float32 at the address
`sums`, perhaps with others. rows: address, stride of a row, distance of the second tile of AMX or 0 for none, and
of the next `depth` numbers; columns: the same, of pairs of numbers. places: distances of each run of `steps`
depths that are added, in rows and in columns.
"""
