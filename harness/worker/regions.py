"""Regions of arrays on a GPU: one launch exchanges, fills or compares them.

CuPy's array operations take several launches each, and one wait per comparison: 1 to 2 ms for the checks around each
sample, which itself takes a quarter of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opgauge.harness.worker.bits import root_of
from opgauge.ops._core.backend import cupy
from opgauge.ops._core.op import Array

SOURCE = Path(__file__).parent / "regions.cu"
"""CUDA source of the kernels."""
THREADS, MOST_BLOCKS = 256, 1024
"""Block, and largest grid."""
REGION = np.dtype([(name, np.uint64) for name in ("offset", "rows", "pitch", "length")])
REGIONS = np.dtype([("region", REGION, (12,)), ("count", np.uint64)])
"""`Region` and `Regions` of the kernels."""
WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
"""C++ type of a word by bytes."""
KERNELS = (
    "fill<unsigned char>",
    *(f"{kernel}<{word}>" for kernel in ("exchange", "compare") for word in WORDS.values()),
)
"""Name expressions of the kernels."""


class Region(NamedTuple):
    """Elements of a flat array: `rows` runs of `length`, `pitch` apart, the first at `offset`."""

    offset: int
    rows: int
    pitch: int
    length: int


class Pair(NamedTuple):
    """Two arrays of one shape and dtype, and regions of both."""

    got: Any
    wanted: Any
    regions: Sequence[Region]


def is_flat(array: Any) -> bool:
    """Whether an array is CuPy's, and its elements lie in the order of its axes."""
    return root_of(array) == "cupy" and bool(array.flags.c_contiguous)


def slices(array: Any, axis: int, start: int, length: int) -> Region:
    """The region of `length` slices along an axis."""
    inner = prod(array.shape[axis + 1 :])
    return Region(start * inner, prod(array.shape[:axis]), array.shape[axis] * inner, length * inner)


def run(start: int, stop: int) -> Region:
    """The region of elements from `start` up to `stop`."""
    return Region(start, 1, stop - start, stop - start)


def exchange(array: Any, axis: int, first: int, second: int, length: int) -> None:
    """Exchange two ranges of `length` slices that do not overlap."""
    region = slices(array, axis, first, length)
    distance = slices(array, axis, second, length).offset - region.offset
    _launch("exchange", [region], (array,), np.uint64(distance * _words(array)[1]))


def fill(flat: Any, regions: Sequence[Region], value: int) -> None:
    """Fill regions of bytes with a value from 0 to 255."""
    _launch("fill", regions, (flat,), np.uint32(value))


def differ(pairs: Iterable[Pair]) -> bool:
    """Whether some bits differ in the regions of some pair, all of which are flat and on the current device."""
    listed, flag = list(pairs), _flag(_device())
    if any(got.shape != wanted.shape or got.dtype != wanted.dtype for got, wanted, _ in listed):
        return True
    for got, wanted, regions in listed:
        _launch("compare", regions, (got, wanted), flag)
    if not int(flag.get()[0]):
        return False
    flag.fill(0)
    return True


def pack(regions: Sequence[Region], words: int) -> Array:
    """`Regions` of elements that have `words` words each."""
    found = [(one.offset * words, one.rows, one.pitch * words, one.length * words) for one in regions]
    empty = [(0, 0, 0, 0)] * (REGIONS["region"].shape[0] - len(found))
    return np.array(([*found, *empty], len(found)), REGIONS)


def _launch(kernel: str, regions: Sequence[Region], arrays: tuple[Any, ...], last: Any) -> None:
    """Launch a kernel on regions of elements of the arrays, if there are any; `last` is its last argument."""
    word, words = _words(arrays[0])
    longest = max((one.rows * one.length for one in regions), default=0) * words
    if longest:
        blocks = min(-(-longest // THREADS), MOST_BLOCKS)
        _function(_device(), f"{kernel}<{word}>")((blocks,), (THREADS,), (*arrays, pack(regions, words), last))


def _words(array: Any) -> tuple[str, int]:
    """C++ type of the words of an array, and words per element."""
    word = min(int(array.itemsize), max(WORDS))
    return WORDS[word], int(array.itemsize) // word


def _device() -> int:
    return int(cupy().cuda.runtime.getDevice())


@cache
def _flag(_device: int) -> Any:
    """A word that `compare` sets, on the current device."""
    return cupy().zeros(1, np.uint32)


@cache
def _function(_device: int, kernel: str) -> Any:
    return _module(_device).get_function(kernel)


@cache
def _module(_device: int) -> Any:
    code = SOURCE.read_text(encoding="utf-8")
    return cupy().RawModule(code=code, options=("-std=c++17",), name_expressions=KERNELS)
