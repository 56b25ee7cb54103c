"""Shape of a deformable convolution, and its sample positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from opgauge.ops._core.op import Array, Shape

Pair = tuple[int, int]
MOST = 1 << 23
"""Maximum numbers in an array of columns; limits the output pixels per piece."""


@dataclass(frozen=True, slots=True)
class SamplingGeometry:
    """A deformable convolution in numbers; pairs are (rows, columns)."""

    batch: int
    channels: int
    size: Pair
    out_channels: int
    kernel: Pair
    out_size: Pair
    strides: Pair
    paddings: Pair
    dilations: Pair
    deformable_groups: int
    groups: int

    @property
    def taps(self) -> int:
        """Entries of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Pixels of one output image."""
        return self.out_size[0] * self.out_size[1]

    @property
    def depth(self) -> int:
        """Products of an output element: channels of a group by taps."""
        return self.channels // self.groups * self.taps

    @property
    def offset_shape(self) -> Shape:
        """Shape of the offset, (N, 2 dg kh kw, Ho, Wo)."""
        return (self.batch, 2 * self.deformable_groups * self.taps, *self.out_size)

    @property
    def mask_shape(self) -> Shape:
        """Shape of the mask, (N, dg kh kw, Ho, Wo)."""
        return (self.batch, self.deformable_groups * self.taps, *self.out_size)

    @property
    def out_shape(self) -> Shape:
        """Shape of the output, (N, Co, Ho, Wo)."""
        return (self.batch, self.out_channels, *self.out_size)

    @property
    def samples(self) -> int:
        """Bilinear samples: one per image, channel, tap and output pixel."""
        return self.batch * self.channels * self.taps * self.pixels

    @property
    def product_flops(self) -> int:
        """Floating-point operations of the matrix product."""
        return 2 * self.samples * self.out_channels // self.groups


@dataclass(frozen=True, slots=True)
class Samples:
    """Sample positions in an image, by deformable group, output pixel and tap: (dg, S), by corner (dg, S, 4).

    places: flat pixel index of each corner, (h0, w0), (h0, w0 + 1), (h0 + 1, w0), (h0 + 1, w0 + 1); the number of
    pixels for one that may not be read. weights: bilinear weight of each. slopes: derivatives of those by
    row and by column. fractions: distances from the upper left corner. reach: |h| + |w| of the sample, and 2.
    position: h and w, also of samples outside, for which the others are those of (0, 0).
    """

    mask: Array
    places: Array
    weights: Array
    slopes: tuple[Array, Array]
    fractions: tuple[Array, Array]
    reach: Array
    position: tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some output pixels of an image, all taps: `count` samples a deformable group."""

    found: SamplingGeometry
    image: int
    pixels: slice

    @property
    def count(self) -> int:
        """Samples of a deformable group."""
        return len(range(self.found.pixels)[self.pixels]) * self.found.taps

    def samples(self, arrays: Mapping[str, Array]) -> Samples:
        """Positions of the samples."""
        found, (height, width) = self.found, self.found.size
        shape = (found.deformable_groups, found.taps, -1)
        offset = arrays["offset"][self.image].reshape(*shape[:2], 2, found.pixels)[..., self.pixels]
        rows, columns = np.divmod(np.arange(found.pixels)[self.pixels], found.out_size[1])
        i, j = np.divmod(np.arange(found.taps), found.kernel[1])
        corner = rows * found.strides[0] - found.paddings[0], columns * found.strides[1] - found.paddings[1]
        h = corner[0] + (i * found.dilations[0])[:, None] + offset[:, :, 0]
        w = corner[1] + (j * found.dilations[1])[:, None] + offset[:, :, 1]
        h, w = self._by_sample(h)[..., None], self._by_sample(w)[..., None]
        inside = (h > -1) & (h < height) & (w > -1) & (w < width)
        position = h[..., 0], w[..., 0]
        h, w = np.where(inside, h, 0.0), np.where(inside, w, 0.0)
        h0, w0 = np.floor(h).astype(np.int64), np.floor(w).astype(np.int64)
        lh, lw = h - h0, w - w0
        row, column = h0 + np.array((0, 0, 1, 1)), w0 + np.array((0, 1, 0, 1))
        readable = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return Samples(
            self.mask(arrays),
            np.where(readable, row * width + column, height * width),
            np.concatenate([(1 - lh) * (1 - lw), (1 - lh) * lw, lh * (1 - lw), lh * lw], axis=2),
            (np.concatenate([lw - 1, -lw, 1 - lw, lw], axis=2), np.concatenate([lh - 1, 1 - lh, -lh, lh], axis=2)),
            (lh[..., 0], lw[..., 0]),
            (np.abs(h) + np.abs(w) + 2)[..., 0],
            position,
        )

    def mask(self, arrays: Mapping[str, Array]) -> Array:
        """Mask values (dg, S); 1 without a mask."""
        groups, taps = self.found.deformable_groups, self.found.taps
        if "mask" not in arrays:
            return np.ones((groups, self.count))
        return self._by_sample(arrays["mask"][self.image].reshape(groups, taps, self.found.pixels)[..., self.pixels])

    def rows(self, x: Array) -> Array:
        """An image by pixel, (dg, H W + 1, C / dg), with zeros for pixels outside."""
        groups, channels = self.found.deformable_groups, self.found.channels
        by_pixel = x[self.image].reshape(groups, channels // groups, -1).transpose(0, 2, 1)
        rows = np.zeros(
            (groups, by_pixel.shape[1] + 1, by_pixel.shape[2]), np.result_type(by_pixel, np.float64)
        )  # contiguous rows
        rows[:, :-1] = by_pixel
        return rows

    def of_output(self, array: Array) -> Array:
        """A part of a tensor like the output: (groups, Co / groups, P)."""
        whole: Array = array[self.image].reshape(self.found.groups, -1, self.found.pixels)
        return whole[..., self.pixels]

    def columns(self, by_part: Array) -> Array:
        """Reorder (dg, S, C / dg) to (groups, P, taps C / groups)."""
        found = self.found
        channels_last = by_part.transpose(1, 0, 2).reshape(-1, found.taps, found.groups, found.channels // found.groups)
        return channels_last.transpose(2, 0, 1, 3).reshape(found.groups, len(channels_last), -1)

    def parts(self, columns: Array) -> Array:
        """The inverse of `columns`."""
        found = self.found
        by_group = columns.reshape(found.groups, -1, found.taps, found.channels // found.groups)
        channels_last = by_group.transpose(1, 2, 0, 3).reshape(self.count, found.deformable_groups, -1)
        return np.ascontiguousarray(channels_last.transpose(1, 0, 2))

    def by_tap(self, by_sample: Array) -> Array:
        """Reorder (dg, S) to the order of offsets and masks, (dg, taps, P)."""
        return by_sample.reshape(self.found.deformable_groups, -1, self.found.taps).transpose(0, 2, 1)

    def _by_sample(self, by_tap: Array) -> Array:
        return by_tap.transpose(0, 2, 1).reshape(self.found.deformable_groups, self.count)


def pieces(found: SamplingGeometry) -> Iterator[Piece]:
    """All output pixels, in pieces with small columns."""
    step = max(1, MOST // max(1, found.taps * found.channels))
    for image in range(found.batch):
        for start in range(0, found.pixels, step):
            yield Piece(found, image, slice(start, min(start + step, found.pixels)))
