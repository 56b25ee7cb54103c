"""Random convolutions, for ops whose shapes and parameters depend on each other; see `Op.propose`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from opgauge.ops._core.op import Shape

BATCHES = (1, 1, 2, 3, 4, 8, 16, 32)
CHANNELS = (1, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 320, 512, 768, 1024)
KERNELS = (1, 1, 1, 2, 3, 3, 3, 4, 5, 7)
"""Candidates, weighted by repetition: images of a batch, channels, and lengths of a kernel's axis."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of images (batch, channels, *size) by a filter (out_channels, channels / groups, *kernel)."""

    batch: int
    channels: int
    out_channels: int
    groups: int
    size: Shape
    kernel: Shape
    strides: Shape
    padding: Shape
    dilation: Shape


def draw_convolution(random: Random, elements: int, rank: int = 2) -> Convolution:
    """A convolution over `rank` axes with an output, for an image tensor of about `elements` elements.

    One in five is depthwise, one in five has a few groups. Of those without, three in ten have as many outputs as
    channels, as most layers of networks do.
    """
    channels, kind = random.choice(CHANNELS), random.random()
    divisors = [number for number in range(1, min(channels, 64) + 1) if channels % number == 0]
    groups = channels if kind < 0.2 else random.choice(divisors) if kind < 0.4 else 1
    outs = channels if random.random() < 0.3 else random.choice(CHANNELS)
    multiplier = random.choice((1, 1, 1, 2)) if groups == channels else max(1, outs // groups)
    batch = random.choice(BATCHES)
    edge = max(1.0, (elements / (batch * channels)) ** (1 / rank))
    square = random.random() < 0.7
    kernel = (random.choice(KERNELS),) * rank if square else tuple(random.choice(KERNELS) for _ in range(rank))
    dilation = (1 if random.random() < 0.85 else 2,) * rank
    strides = (1 if random.random() < 0.7 else 2,) * rank
    padding = tuple(
        random.choice((0, d * (k - 1) // 2, d * (k - 1) // 2)) for k, d in zip(kernel, dilation, strict=True)
    )
    size = tuple(
        max(round(edge * random.uniform(0.7, 1.4)), d * (k - 1) + 1 - 2 * p, 1)
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    return Convolution(batch, channels, groups * multiplier, groups, size, kernel, strides, padding, dilation)
