"""Copies, fills, reads and multiply-adds by as many threads as Numba uses: what the CPU allows."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from numba import njit, prange

# It says which instructions Numba may use, once for a process, and so before whatever is compiled first: these are.
# Another tree's `ops` may have no such module.
if find_spec("opgauge.ops._cpu.jit") is not None:
    import_module("opgauge.ops._cpu.jit")


@njit(cache=True, parallel=True)
def copy(source: Any, target: Any) -> None:
    """Flat, of one length."""
    for index in prange(target.size):
        target[index] = source[index]


@njit(cache=True, parallel=True)
def fill(target: Any, value: float) -> None:
    """Flat."""
    for index in prange(target.size):
        target[index] = value


@njit(cache=True, parallel=True, fastmath=True)
def read(source: Any) -> float:
    """Sum of a flat array."""
    total = source[0] * 0
    for index in prange(source.size):
        total += source[index]
    return float(total)


@njit(cache=True, parallel=True, fastmath=True)
def multiply_add(blocks: Any, rounds: int) -> None:
    """Each row of `blocks` (rows, LANES) times itself plus a constant, `rounds` times: LANES independent chains.

    A row lives in registers, so nothing but the rate of multiply-adds counts. 2 · blocks.size · rounds operations.
    """
    for row in prange(blocks.shape[0]):
        lanes = blocks[row].copy()
        factor, addend = lanes[0], lanes[1]
        for _ in range(rounds):
            for lane in range(LANES):
                lanes[lane] = lanes[lane] * factor + addend
        blocks[row] = lanes


LANES = 128
"""Independent multiply-adds: more than latency times ports times the width of a vector."""
