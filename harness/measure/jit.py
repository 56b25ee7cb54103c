"""Copies, fills, reads and multiply-adds with all of Numba's threads: the achieved peaks of the CPU."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

from numba import get_num_threads, njit, prange

# This module sets the instructions that Numba may use, once per process, and so before the functions below.
# Another tree's `ops` may have no such module.
with suppress(ModuleNotFoundError):
    import_module("opgauge.ops._cpu.jit")


def threads() -> int:
    """Threads that parallel loops use."""
    return int(get_num_threads())


@njit(cache=True, parallel=True)
def copy(source: Any, target: Any) -> None:
    """Copy one flat array to another of the same length."""
    for index in prange(target.size):
        target[index] = source[index]


@njit(cache=True, parallel=True)
def fill(target: Any, value: float) -> None:
    """Fill a flat array."""
    for index in prange(target.size):
        target[index] = value


@njit(cache=True, parallel=True, fastmath=True)
def read(source: Any) -> float:
    """Sum of a flat array."""
    total = source[0] * 0
    for index in prange(source.size):
        total += source[index]
    return float(total)


@njit(cache=True)
def copy_alone(source: Any, target: Any) -> None:
    """`copy` by one thread."""
    for index in range(target.size):
        target[index] = source[index]


@njit(cache=True)
def fill_alone(target: Any, value: float) -> None:
    """`fill` by one thread."""
    for index in range(target.size):
        target[index] = value


@njit(cache=True, fastmath=True)
def read_alone(source: Any) -> float:
    """Sum of a flat array by one thread, which reads four quarters at a time: more loads in flight than one stream."""
    quarter = source.size // 4
    one = source[0] * 0
    two, three, four = one, one, one
    for index in range(quarter):
        one += source[index]
        two += source[quarter + index]
        three += source[2 * quarter + index]
        four += source[3 * quarter + index]
    return float(one + two + three + four)


def _multiply_add(chains: int) -> Any:
    """A function that multiplies and adds in `chains` independent chains; a constant number keeps them in registers."""

    @njit(cache=True, fastmath=True)
    def multiply_add(row: Any, rounds: int) -> None:
        """`rounds` times, each of `chains` elements times itself plus a constant, by one thread.

        Nothing but the rate of multiply-adds counts: 2 · chains · rounds operations.
        """
        lanes = row.copy()
        factor, addend = lanes[0], lanes[1]
        for _ in range(rounds):
            for lane in range(chains):
                lanes[lane] = lanes[lane] * factor + addend
        row[:] = lanes

    return multiply_add


MULTIPLY_ADD = {chains: _multiply_add(chains) for chains in (32, 64, 128)}
"""By number of chains: latency times ports times the width of a vector decides which is fastest."""
