"""Plan of `depthwise`: one launch of a depthwise conv_data_grad, channels last."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from opgauge.ops._core.dtype import accumulator_info, dtype_info
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.conv_data_grad.cuda_direct import LARGEST_INDEX
from opgauge.ops.conv_data_grad.cuda_small import THREADS, elements
from opgauge.ops.conv_data_grad.op import ConvGeometry

TAPS, STRIDES = (1, 3, 5, 7), (1, 2)
"""Taps along rows and strides for which kernels are compiled."""
PIXELS = 4
"""Pixels of a row that a thread computes.

On an H200 two pixels and blocks of 64 threads were no faster for launches with less than a block per multiprocessor.
"""
BUSY = 1 / 8
"""Share of multiprocessors below which a thread computes one channel: on an H200 up to 35 % less for 16 blocks."""
SLICE_BYTES, SHARED_BYTES = 128, 48 << 10
"""Maximum bytes of a pixel that a block computes, and shared memory for the filter of these channels."""


class DepthwiseConfig(NamedTuple):
    """Launch of `depthwise`. vector: channels of a thread. vectors: of a block's slice of channels."""

    found: ConvGeometry
    dtype: str
    vector: int
    vectors: int
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"depthwise, {self.vector} channels of {PIXELS} pixels a thread: channels apart from each other"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the filter of its channels."""
        return prod(self.found.kernel) * self.vectors * self.vector * accumulator_info(self.dtype).itemsize

    @property
    def unaligned(self) -> DepthwiseConfig:
        """The same slices of channels, one channel per access and thread."""
        return self._replace(vector=1, vectors=self.vectors * self.vector)

    @property
    def rows(self) -> int:
        """Rows of all images."""
        return self.found.batch * prod(self.found.size[:-1])

    @property
    def across(self) -> int:
        """Threads along a row."""
        return -(-(self.found.size[-1] + self.found.padding[-1] % self.found.strides[-1]) // PIXELS)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks along pixels, and along slices of channels."""
        slices = -(-self.found.channels // (self.vectors * self.vector))
        return -(-self.rows * self.across // (THREADS // self.vectors)), slices


def depthwise_config(found: ConvGeometry, dtype: str, gpu: Gpu) -> DepthwiseConfig | None:
    """The launch; None for groups of several channels, channels first, and filters without a kernel."""
    apart = found.groups == found.channels == found.out_channels
    suits = found.kernel[-1] in TAPS and found.strides[-1] in STRIDES and found.dilation[-1] == 1
    if not apart or not found.channels_last or not suits or elements(found) > LARGEST_INDEX:
        return None
    itemsize = dtype_info(dtype).itemsize
    whole = 16 // itemsize
    vector = whole if found.channels % whole == 0 else 1
    slices = -(-found.channels * itemsize // SLICE_BYTES)
    vectors = -(-found.channels // vector // slices)
    config = DepthwiseConfig(found, dtype, vector, vectors)
    if config.shared_bytes > SHARED_BYTES:
        return None
    return config if prod(config.grid) >= BUSY * gpu.multiprocessors else config.unaligned
