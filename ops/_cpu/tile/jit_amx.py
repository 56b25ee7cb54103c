"""Matrix products of bfloat16 in AMX, the tile registers of Intel's processors since Sapphire Rapids.

A product of two tiles multiplies 16 rows of up to 32 numbers with 16 columns of as many, and adds to 16 rows of 16
float32. Numbers of a column lie in pairs, as the instruction takes them. Subnormal numbers count as zero.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, chapter 18, and llvm's IntrinsicsX86.td.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from opgauge.ops._cpu.jit import INNER

SIDE, DEPTH = 16, 32
"""Rows and columns of a tile of sums; numbers that one product of tiles sums, at most."""
BLOCK = 2 * SIDE
"""Rows and columns of `multiply_block`."""
_ROW_BYTES = 64
_REQUEST = 158, 0x1023, 18
"""Linux' call arch_prctl, its ARCH_REQ_XCOMP_PERM, and the number of the tile registers' data."""
_BYTE = ir.IntType(8)


@cache
def is_available() -> bool:
    """Whether the processor has AMX for bfloat16 and the system lets this process use it, for which it is asked."""
    if sys.platform != "linux" or config.CPU_NAME is not None:
        return False
    features = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
    return "+amx-bf16" in features.split(",") and ctypes.CDLL(None).syscall(*_REQUEST) == 0


def configuration(depth: int) -> Any:
    """Shapes of the eight tiles for `load_configuration`: four of sums, two of rows and two of columns of `depth`.

    depth: even, at most `DEPTH`.
    """
    shapes = [(SIDE, _ROW_BYTES)] * 4 + [(SIDE, 2 * depth)] * 2 + [(depth // 2, _ROW_BYTES)] * 2
    chosen = np.zeros(_ROW_BYTES, np.uint8)
    chosen[0] = 1
    chosen[16:32].view(np.uint16)[:] = [nbytes for _, nbytes in shapes]
    chosen[48:56] = [rows for rows, _ in shapes]
    return chosen


def _instruction(name: str, *tiles: int, addressed: int = 0) -> Any:
    """An intrinsic for an instruction on `tiles`; addressed: it takes an address (1), and a stride in bytes (2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        values = [ir.Constant(_BYTE, tile) for tile in tiles]
        if arguments:
            values += [builder.inttoptr(arguments[0], _BYTE.as_pointer()), *arguments[1:]]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, values)
        return context.get_dummy_value()

    def without(typingctx: Any) -> Any:
        del typingctx
        return types.void(), generate

    def by_address(typingctx: Any, address: Any) -> Any:
        del typingctx, address
        return types.void(types.int64), generate

    def by_row(typingctx: Any, address: Any, stride: Any) -> Any:
        del typingctx, address, stride
        return types.void(types.int64, types.int64), generate

    return intrinsic((without, by_address, by_row)[addressed])


load_configuration = _instruction("llvm.x86.ldtilecfg", addressed=1)
"""Configure the tiles of this thread by the address of a `configuration`."""
release = _instruction("llvm.x86.tilerelease")
"""Leave the tiles in their initial state, in which threads are switched without saving them."""
_clear_0, _clear_1, _clear_2, _clear_3 = (_instruction("llvm.x86.tilezero", tile) for tile in range(4))
_store_0, _store_1, _store_2, _store_3 = (_instruction("llvm.x86.tilestored64", tile, addressed=2) for tile in range(4))
_load_4, _load_5, _load_6, _load_7 = (_instruction("llvm.x86.tileloadd64", tile, addressed=2) for tile in range(4, 8))
_add_0, _add_1, _add_2, _add_3 = (
    _instruction("llvm.x86.tdpbf16ps", 2 * row + column, 4 + row, 6 + column) for row in range(2) for column in range(2)
)


@njit(**INNER)
def multiply_block(rows: Any, columns: Any, places: Any, steps: int, sums: int) -> None:
    """Store a block of sums (BLOCK, BLOCK) of float32 at the address `sums`, of factors at addresses in bytes.

    rows: address, stride of a row, distance of the second tile or 0 for none, and of the next `depth` numbers; columns:
    the same, of pairs of numbers. places: distances of each run of `steps` depths that are added, in rows and columns.
    """
    row, row_stride, row_second, row_step = rows
    column, column_stride, column_second, column_step = columns
    _clear_0()
    _clear_1()
    _clear_2()
    _clear_3()
    for run in range(0, places.size, 2):
        left, right = row + places[run], column + places[run + 1]
        for _ in range(steps):
            _load_4(left, row_stride)
            _load_6(right, column_stride)
            _add_0()
            if column_second:
                _load_7(right + column_second, column_stride)
                _add_1()
            if row_second:
                _load_5(left + row_second, row_stride)
                _add_2()
                if column_second:
                    _add_3()
            left += row_step
            right += column_step
    _store_0(sums, 4 * BLOCK)
    _store_1(sums + 4 * SIDE, 4 * BLOCK)
    _store_2(sums + 4 * BLOCK * SIDE, 4 * BLOCK)
    _store_3(sums + 4 * BLOCK * SIDE + 4 * SIDE, 4 * BLOCK)


@njit(**INNER)
def address_of(array: Any) -> int:
    """Address of an array's first element."""
    return int(np.int64(array.ctypes.data))
