"""Plan of `multiply`, one launch of conv_data_grad without tensor cores, and estimates of its duration."""

from __future__ import annotations

from math import log2, prod
from typing import NamedTuple

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.conv_data_grad.cuda_direct import LARGEST_INDEX, DirectConfig
from opgauge.ops.conv_data_grad.op import ConvGeometry

THREADS = 256
"""Threads per block, and maximum number of them that share an element of dx."""
IN_FLIGHT, FEW_OUTS = 8, 2
"""Products of a thread whose factors are loaded at once; its channels of dy up to which they are of several taps."""
_LONGEST_CHAIN = 256
"""Maximum products that a thread adds one after the other: longer sums lose accuracy."""
_START, _ROUND, _LEVEL = 2.0, 0.30, 0.047
"""Microseconds of a launch, of a round of loads, and of a level of the sum over threads, on an H100."""
_THREAD, _THREAD_ROUND, _PRODUCT = 1.80e-5, 0.387e-5, 0.12e-6
"""Microseconds that each thread, each round of a thread and each product add."""
FEW_ROUND = 0.55
"""Rounds for which a thread waits per tap where several are loaded at once."""
_PROCESSORS = 132
"""Multiprocessors of that device."""
_DIRECT_START, _DIRECT_CYCLE = 3.7, 1.2 / 1700
"""Microseconds of a launch of `direct`, and of an estimated cycle of it."""
_FEW_POINTWISE_US, _FEW_16_BIT_US, _FEW_US = 6.0, 8.0, 12.0
"""Estimated microseconds up to which one launch is faster: than a single product, than repacking and a product in 16
bits, and in wider types."""
FEW_CHANNELS, MANY_OUTS = 4, 32
"""Channels of dx per group for which a 1x1 product in float32, whose rows would be mostly empty, takes 1.4 to 3.5 times
as long as one launch on an H200 (in 16 bits 0.8 to 1.3 times; six channels: 1.0 from memory, 1.3 from cache); and
channels of dy from which `direct` without groups takes 1.0 to 13 times as long, as its estimate is low for one tap."""


class SmallConfig(NamedTuple):
    """Launch of `multiply`: `lanes` threads share an element of dx. duration: estimate in microseconds."""

    found: ConvGeometry
    lanes: int
    duration: float
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"multiply, {self.lanes} threads an element: few products"


def elements(found: ConvGeometry) -> int:
    """Elements of dx."""
    return found.batch * found.channels * prod(found.size)


def products(found: ConvGeometry) -> int:
    """Multiply-adds, without those of taps that reach beyond dy."""
    total = found.batch * found.out_channels * (found.channels // found.groups)
    for axis in zip(
        found.size, found.out_size, found.kernel, found.strides, found.padding, found.dilation, strict=True
    ):
        size, out, kernel, stride, padding, dilation = axis
        moved = (padding - tap * dilation for tap in range(kernel))
        total *= sum(max(0, min(out, (size - 1 + at) // stride + 1) - max(0, -(-at // stride))) for at in moved)
    return total


def small_config(found: ConvGeometry, gpu: Gpu) -> SmallConfig:
    """The number of threads per element with the shortest estimated duration, if their chains of sums are short."""
    outs, size, work = found.out_channels // found.groups, elements(found), products(found)
    taps = work / max(size * outs, 1)
    most = 1 << (min(outs, THREADS) - 1).bit_length()
    powers = [1 << power for power in range(most.bit_length())]
    chains = [lanes for lanes in powers if -(-outs // lanes) * taps <= _LONGEST_CHAIN] or [most]

    def duration(lanes: int) -> float:
        rounds, threads = taps * -(-outs // (IN_FLIGHT * lanes)), size * lanes
        waits = max(1.0, FEW_ROUND * taps) if outs <= FEW_OUTS * lanes else rounds
        busy = threads * (_THREAD + rounds * _THREAD_ROUND) + work * _PRODUCT
        return _START + _ROUND * waits + _LEVEL * log2(lanes) + busy * _PROCESSORS / gpu.multiprocessors

    lanes = min(chains, key=duration)
    return SmallConfig(found, lanes, duration(lanes))


def _has_few_channels(found: ConvGeometry) -> bool:
    """Whether a product of one tap would have few rows."""
    return found.is_pointwise and found.channels // found.groups <= FEW_CHANNELS


def replaces_direct(small: SmallConfig, direct: DirectConfig, gpu: Gpu) -> bool:
    """Whether `multiply` is faster than `direct`, whose blocks have more to prepare."""
    found = small.found
    if _has_few_channels(found) and found.groups == 1 and found.out_channels >= MANY_OUTS:
        return elements(found) <= LARGEST_INDEX
    return small.duration <= _DIRECT_START + _DIRECT_CYCLE * direct.duration(gpu.multiprocessors)


def replaces_product(small: SmallConfig, dtype: str) -> bool:
    """Whether `multiply` is faster than tensor cores, or than columns and a product in float64."""
    found, itemsize = small.found, dtype_info(dtype).itemsize
    if _has_few_channels(found) and dtype == "float32":
        return elements(found) <= LARGEST_INDEX
    if found.is_pointwise and itemsize <= 4:
        return small.duration <= _FEW_POINTWISE_US
    return small.duration <= (_FEW_16_BIT_US if itemsize == 2 else _FEW_US)
