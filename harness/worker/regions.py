"""Regions of arrays on a GPU: one launch exchanges, fills or compares many of them.

CuPy's array operations take several launches each, and one wait per comparison: 1 to 2 ms for the checks around each
sample, which itself takes a quarter of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opgauge.harness.worker.bits import address_of, root_of
from opgauge.ops._core.backend import cupy
from opgauge.ops._core.op import Array

SOURCE = Path(__file__).parent / "regions.cu"
"""CUDA source of the kernel."""
KERNEL = "perform"
"""The kernel."""
THREADS, MOST_BLOCKS = 256, 1024
"""Block, and most blocks per operation."""
LARGEST_WORD = 8
"""Bytes of the largest word."""
EXCHANGE, FILL, COMPARE = range(3)
"""`Kind` of the kernel."""
FIELDS, OPERATIONS = 14, 36
"""64-bit fields of `Operation`, and operations per launch."""


class Region(NamedTuple):
    """Elements of a flat array: `rows` runs of `length`, `pitch` apart, the first at `offset`."""

    offset: int
    rows: int
    pitch: int
    length: int


class Moved(NamedTuple):
    """Two ranges of `length` slices that are exchanged, along an axis of `size` slices of `inner` elements."""

    inner: int
    size: int
    first: int
    second: int
    length: int


class Pair(NamedTuple):
    """Two arrays of one shape and dtype, and regions of the first.

    moved: slices of the first that are exchanged in the second.
    """

    got: Any
    wanted: Any
    regions: Sequence[Region]
    moved: Moved | None = None


class Operation(NamedTuple):
    """`Operation` of the kernel, in the order of its fields; lengths are in words of `nbytes`."""

    kind: int
    nbytes: int
    address: int
    other: int
    offset: int
    rows: int
    pitch: int
    length: int
    value: int = 0
    moved: tuple[int, ...] = (0,) * 5


def is_flat(array: Any) -> bool:
    """Whether an array is CuPy's, and its elements lie in the order of its axes."""
    return root_of(array) == "cupy" and bool(array.flags.c_contiguous)


def slices(array: Any, axis: int, start: int, length: int) -> Region:
    """The region of `length` slices along an axis."""
    inner = prod(array.shape[axis + 1 :])
    return Region(start * inner, prod(array.shape[:axis]), array.shape[axis] * inner, length * inner)


def moved(array: Any, axis: int, first: int, second: int, length: int) -> Moved:
    """Two exchanged ranges of slices along an axis."""
    return Moved(prod(array.shape[axis + 1 :]), array.shape[axis], first, second, length)


def run(start: int, stop: int) -> Region:
    """The region of elements from `start` up to `stop`."""
    return Region(start, 1, stop - start, stop - start)


def exchanging(array: Any, axis: int, first: int, second: int, length: int) -> Operation:
    """Exchange two ranges of `length` slices that do not overlap."""
    word, words = _words(array)
    here = _scaled(slices(array, axis, first, length), words)
    there = slices(array, axis, second, length).offset * words
    address = address_of(array)
    return Operation(EXCHANGE, word, address, address + (there - here.offset) * word, *here)


def filling(flat: Any, regions: Iterable[Region], value: int) -> Iterator[Operation]:
    """Fill regions of bytes with a value from 0 to 255."""
    address = address_of(flat)
    for offset, rows, pitch, length in regions:
        word = gcd(address + offset, pitch, length, LARGEST_WORD)
        number = int.from_bytes(bytes([value]) * word, "little")
        yield Operation(FILL, word, address + offset, 0, 0, rows, pitch // word, length // word, number)


def perform(operations: Iterable[Operation]) -> None:
    """Exchange, fill and compare, as many per launch as its arguments hold; no two change the same element."""
    listed = [one for one in operations if one.rows * one.length]
    for start in range(0, len(listed), OPERATIONS):
        together = listed[start : start + OPERATIONS]
        longest = max(one.rows * one.length for one in together)
        grid, device = (min(-(-longest // THREADS), MOST_BLOCKS), len(together)), _device()
        _function(device)(grid, (THREADS,), (_packed(together), _flag(device)))


def differ(pairs: Iterable[Pair]) -> bool:
    """Whether some bits differ in the regions of some pair, all of which are flat and on the current device."""
    listed = list(pairs)
    if any(got.shape != wanted.shape or got.dtype != wanted.dtype for got, wanted, *_ in listed):
        return True
    perform(one for pair in listed for one in _comparing(pair))
    flag = _flag(_device())
    if not int(flag.get()[0]):
        return False
    flag.fill(0)
    return True


def _comparing(pair: Pair) -> Iterator[Operation]:
    word, words = _words(pair.got)
    addresses = address_of(pair.got), address_of(pair.wanted)
    exchanged = Operation._field_defaults["moved"]
    if pair.moved is not None:
        exchanged = (pair.moved.inner * words, *pair.moved[1:])
    for region in pair.regions:
        yield Operation(COMPARE, word, *addresses, *_scaled(region, words), moved=exchanged)


def _packed(operations: Sequence[Operation]) -> Array:
    """`Operations` of the kernel, without fields: CuPy would describe each of them at each launch."""
    numbers = np.zeros(FIELDS * OPERATIONS, np.uint64)
    found = [number for one in operations for number in (*one[:-1], *one.moved)]
    numbers[: len(found)] = found
    return numbers.view(f"V{numbers.nbytes}").reshape(())


def _scaled(region: Region, words: int) -> Region:
    """A region of elements that have `words` words each, in words."""
    offset, rows, pitch, length = region
    return Region(offset * words, rows, pitch * words, length * words)


def _words(array: Any) -> tuple[int, int]:
    """Bytes of the words of an array, and words per element."""
    word = min(int(array.itemsize), LARGEST_WORD)
    return word, int(array.itemsize) // word


def _device() -> int:
    return int(cupy().cuda.runtime.getDevice())


@cache
def _flag(_device: int) -> Any:
    """A word that comparisons set, on the current device."""
    return cupy().zeros(1, np.uint32)


@cache
def _function(_device: int) -> Any:
    module = cupy().RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17",))
    return module.get_function(KERNEL)
