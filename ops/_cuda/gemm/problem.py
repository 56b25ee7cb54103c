"""A matrix product and its launch as values: `GemmProblem` and `GemmConfig`, without arrays and without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._cuda.source import flag
from opgauge.ops._cuda.vectors import widest_vector

EXACT, TF32 = 3, 1
"""Products per float32 product: 3xTF32 or plain TF32."""
TILE = 128
"""Rows and columns of the usual tile."""
SPLITS, TRANSPOSE = "splits", "transpose"
"""Uses of a workspace: partial results of splits of the depth; images of b as rows, as for channels_last."""


class Alignment(NamedTuple):
    """Alignment of the arrays' addresses in bytes, at most 16."""

    a: int = 16
    b: int = 16
    d: int = 16
    addend: int = 16
    workspace: int = 16


WHOLE = Alignment()
"""Alignment to 16 bytes, as assumed before addresses are known."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor seen as a matrix: element (row, j) of a group lies at j // post * image + row * stride + j % post.

    stride, image, group: in elements. post: columns until the next image, 0 for a single image.
    k_major: (factors) a row runs along the depth; else the rows are the depth.
    """

    stride: int
    image: int = 0
    post: int = 0
    group: int = 0
    k_major: bool = False


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """The product d = a b (+ addend, laid out as d) of `size` (rows, columns, depth) for each of `groups`.

    a is (rows, depth) if K-major, else (depth, rows); b is (columns, depth) if K-major, else (depth, columns).
    dtype: of a and b. result: dtype of d and the addend. parts: EXACT or TF32. workspace: SPLITS, for which d covers
    its array; TRANSPOSE; or "" if there is none. alignment: 16 before addresses are known. most_splits: of the depth.
    """

    dtype: str
    result: str
    size: tuple[int, int, int]
    a: Matrix
    b: Matrix
    d: Matrix
    groups: int = 1
    added: bool = False
    parts: int = EXACT
    workspace: str = ""
    alignment: Alignment = WHOLE
    most_splits: int = 32

    @property
    def tiles(self) -> int:
        """Tiles of 128 x 128 elements of d."""
        return self.groups * -(-self.size[0] // TILE) * -(-self.size[1] // TILE)

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Elements of a row of a, b and d."""
        rows, columns, depth = self.size
        return depth if self.a.k_major else rows, depth if self.b.k_major else columns, columns

    @property
    def is_plain(self) -> bool:
        """Whether b is (depth, columns), and d has the factors' dtype and accuracy."""
        return not self.b.k_major and self.parts == EXACT and self.result == self.dtype

    def allows(self, widths: tuple[int, int, int], *, partial: bool = False) -> bool:
        """Whether accesses of so many elements to a, b and d with the addend are possible.

        partial: d is partial results in float32, in the workspace.
        """
        return all(found >= width for found, width in zip(self._vectors(partial=partial), widths, strict=True))

    def _vectors(self, *, partial: bool) -> Iterator[int]:
        at = self.alignment
        result = "float32" if partial else self.result
        target = at.workspace if partial else min(at.d, at.addend)
        for dtype, matrix, length, address in zip(
            (self.dtype, self.dtype, result), (self.a, self.b, self.d), self.lengths, (at.a, at.b, target), strict=True
        ):
            itemsize = dtype_info(dtype).itemsize
            numbers = (matrix.stride, matrix.image, matrix.post, matrix.group, length, address // itemsize)
            yield widest_vector(itemsize, *numbers)


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """Launch of a matrix product.

    kernel: C++ name of the instance. tile: rows and columns of d per block. stages: of the depth in shared memory.
    numbers: fields of the kernel's struct. arrays: in the order of the kernel's arguments; "target" is d, or partial
    results in the workspace. maps: (array, elements of a row, rows of a box, rows of an image) of tensor maps, before
    the arrays; kernels without them take Views. extra_grid: of the launch that transposes images of b first, or that
    adds up splits afterwards. workspace_bytes: of those images or partial results. reason: why this template.
    """

    kernel: str
    tile: tuple[int, int]
    stages: int
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    numbers: dict[str, int]
    reason: str
    arrays: tuple[str, ...] = ("a", "b", "addend", "target")
    maps: tuple[tuple[str, int, int, int], ...] = ()
    splits: int = 1
    extra_grid: tuple[int, ...] = ()
    workspace_bytes: int = 0

    @property
    def template(self) -> str:
        """Name of the kernel without template arguments."""
        return self.kernel.partition("<")[0]

    def __str__(self) -> str:
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        tile, grid = ("x".join(map(str, numbers)) for numbers in (self.tile, self.grid))
        return (
            f"{self.kernel} tile {tile}, {self.stages} stages{splits}, grid {grid} block {self.threads}: {self.reason}"
        )


def expression(template: str, *arguments: str | int) -> str:
    """C++ name of a kernel instance; a template argument is the name of a dtype, a Boolean or a number."""
    return f"{template}<{', '.join(map(_in_cpp, arguments))}>"


def _in_cpp(argument: str | int) -> str:
    if isinstance(argument, bool):
        return flag(argument)
    return dtype_info(argument).ctype if isinstance(argument, str) else str(argument)
