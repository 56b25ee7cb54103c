"""A reduction and its launch as values: `ReduceProblem`, `ReducePlan`, and numbers that all kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

from opgauge.ops._core.axes import MergedAxes

THREADS, VECTOR_BYTES = 256, 16
LARGEST = (1 << 31) - (1 << 16)
"""Maximum number of elements, and of results: 32-bit indices, with room for the surplus lanes of the last block."""
HALF_BYTES, DOUBLE_BYTES = 2, 8
"""Sizes of 16-bit elements and of a double: larger elements are complex."""
LINE_VECTORS = 8
"""Vectors of 16 bytes in a cache line."""
LARGEST_GRID = 65_535
MOST_SPLITS, LEAST_SHARE = 1024, 64
"""Maximum blocks per result, and minimum elements of each."""
FEW_ELEMENTS = 1 << 16
"""Elements up to which reduce_elements_lanes is the fastest kernel for every layout, and for columns further: vectors
cost 4 to 14 % on rows and 24 to 51 % on columns, at 4 us in all."""
GRID_RESIDENT = 4
"""Resident blocks of reduce_rows_grid per multiprocessor on every device; rows are limited to them, as blocks wait."""
STREAMED_FROM, STREAMED_ROWS, STREAMED_COLUMNS = 12 << 20, 192, 384
"""Bytes from which reads are L2 evict_first, and megabytes up to which they are: smaller tensors stay in cache."""


class GpuSize(NamedTuple):
    """Size of a GPU, as far as a plan depends on it."""

    multiprocessors: int


@dataclass(frozen=True, slots=True)
class ReduceProblem:
    """The properties of a reduction that its plan depends on.

    axes: the merged axes of x. width: elements per vector. accumulator_bytes: per partial result. light: an element
    costs two or three instructions and a single tensor is accumulated in 32 bits. past: elements from the start of a
    cache line to x. paired: a second tensor is read with x; aligned_pair: both have the same offset within a vector.
    wide_out: out is aligned to a vector. kept: x is to stay in the L2 cache.
    """

    axes: MergedAxes
    itemsize: int
    width: int
    accumulator_bytes: int
    light: bool = True
    past: int = 0
    paired: bool = False
    aligned_pair: bool = True
    wide_out: bool = True
    kept: bool = False

    @property
    def size(self) -> int:
        """Elements of x."""
        return self.axes.length * self.axes.count

    @property
    def nbytes(self) -> int:
        """Bytes of x."""
        return self.size * self.itemsize

    @property
    def few(self) -> bool:
        """Whether x has so few elements that single loads are the fastest for every layout."""
        return self.size <= FEW_ELEMENTS

    @property
    def shift(self) -> int:
        """Elements from an aligned address to x."""
        return self.past % self.width

    @property
    def read_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.nbytes * (2 if self.paired else 1)

    def has_whole_rows(self, length: int) -> bool:
        """Whether every row of this length begins and ends with a vector."""
        return self.shift == length % self.width == 0

    def streams(self, megabytes: int) -> bool:
        """Whether reads are L2 evict_first, as for sizes up to `megabytes`."""
        return not self.kept and self.read_bytes >= STREAMED_FROM and self.read_bytes >> 20 <= megabytes


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """Launch of a reduction.

    template: template arguments after the functor. numbers: kernel arguments after the functor's value. shares: whether
    the workspace for flagged partials follows. reason: why this kernel was chosen.
    """

    kernel: str
    template: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    numbers: tuple[Any, ...]
    reason: str
    shares: bool = False

    def expression(self, functor: str) -> str:
        """C++ name of the kernel instance."""
        return f"{self.kernel}<{functor}, {self.template}>"

    def __str__(self) -> str:
        grid, block = ("x".join(map(str, size)) for size in (self.grid, self.block))
        return f"{self.kernel}<{self.template}> grid {grid} block {block}: {self.reason}"


def most_splits(count: int, length: int) -> int:
    """Maximum blocks per result, for `count` results of `length` elements: more blocks for fewer results."""
    return max(1, min(MOST_SPLITS, (1 << 16) // max(count, 1), length // LEAST_SHARE))


def touched_vectors(rows: int, length: int, width: int, shift: int, unit: int = 0) -> int:
    """Maximum vectors from the start of a unit of `unit` elements (default: a vector) to the end of a row.

    The first row begins `shift` elements into a unit.
    """
    unit = unit or width
    if rows == 1:
        return -(-(shift + length) // width)
    step = gcd(length, unit)  # offsets of rows within a unit are multiples of it
    return -(-(unit - step + shift % step + length) // width)
