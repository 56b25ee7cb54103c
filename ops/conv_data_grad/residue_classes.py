"""Residue classes of a convolution's pixels by stride: which taps of the filter reach which pixels of dy."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from opgauge.ops.conv_data_grad.op import ConvGeometry

AXES, MOST_PASSES, MOST_TAPS = 3, 16, 512
"""Spatial axes; maximum passes over the residue classes, and taps of the filter."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis: pixel `stride * a + residue` of dx takes pixel `a + reach` of dy for each reach of a tap."""

    full: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def residues(self) -> range:
        """The classes that contain pixels."""
        return range(min(self.stride, self.full))

    def size(self, residue: int) -> int:
        """Pixels of a class."""
        return -(-(self.full - residue) // self.stride)

    @property
    def step(self) -> int:
        """Distance between consecutive reaches of a class."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def between(self) -> int:
        """Taps of the filter from one of a class to the next."""
        return self.stride // gcd(self.stride, self.dilation)

    def taps(self, residue: int) -> list[tuple[int, int]]:
        """Taps of a class and their reaches, longest first."""
        moved = ((tap, residue + self.padding - tap * self.dilation) for tap in range(self.kernel))
        return [(tap, item // self.stride) for tap, item in moved if item % self.stride == 0]

    def reaches(self, residue: int) -> list[int]:
        """Reaches of a class' taps, longest first."""
        return [reach for _, reach in self.taps(residue)]

    @property
    def all_reaches(self) -> list[int]:
        """From the longest of all classes to the shortest, without a gap."""
        found = [reach for residue in self.residues for reach in self.reaches(residue)]
        return list(range(max(found), min(found) - 1, -1)) if found else []

    @property
    def margin(self) -> int:
        """Zeros before dy; those of the next row follow it."""
        reaches = self.all_reaches or [0]
        return max(0, -reaches[-1], self.size(0) - 1 + reaches[0] - (self.out - 1))

    @property
    def pitch(self) -> int:
        """Pixels from one row to the next."""
        return self.out + self.margin


@dataclass(frozen=True, slots=True)
class ClassTiles:
    """Pixels of dx with common taps: one residue class, or all pixels if classes are rows.

    reaches: of the taps along each axis. unit: pixels that tiles are cut from. tiles: of columns.
    """

    residue: tuple[int, ...]
    size: tuple[int, ...]
    reaches: tuple[tuple[int, ...], ...]
    columns: int
    unit: int
    tiles: int

    @property
    def taps(self) -> int:
        """Products per row and column."""
        return prod(map(len, self.reaches))


def axes_of(found: ConvGeometry) -> tuple[Axis, ...]:
    """Three axes, missing ones in front."""
    missing = AXES - len(found.size)
    given = (found.size, found.out_size, found.kernel, found.strides, found.padding, found.dilation)
    return (Axis(1, 1, 1, 1, 0, 1),) * missing + tuple(Axis(*numbers) for numbers in zip(*given, strict=True))
