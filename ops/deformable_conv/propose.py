"""Random deformable convolutions, for `opgauge explore`."""

from __future__ import annotations

from random import Random
from typing import Any

from opgauge.ops._core.draw import draw_convolution
from opgauge.ops._core.op import Shape


def propose(random: Random, elements: int) -> tuple[dict[str, Shape], dict[str, Any]]:
    """Shapes of x, filter and in one case of two the mask, with matching parameters."""
    found = draw_convolution(random, elements)
    divisors = [number for number in (1, 2, 4, 8) if found.channels % number == 0]
    chosen = random.choice((1, 1, random.choice(divisors)))
    shapes: dict[str, Shape] = {
        "x": (found.batch, found.channels, *found.size),
        "filter": (found.out_channels, found.channels // found.groups, *found.kernel),
    }
    if random.random() < 0.5:
        out = [
            (length + 2 * p - (d * (k - 1) + 1)) // s + 1
            for length, p, d, k, s in zip(
                found.size, found.padding, found.dilation, found.kernel, found.strides, strict=True
            )
        ]
        shapes["mask"] = (found.batch, chosen * found.kernel[0] * found.kernel[1], *out)
    params = {
        "strides": found.strides,
        "paddings": found.padding,
        "dilations": found.dilation,
        "deformable_groups": chosen,
        "groups": found.groups,
        "im2col_step": random.choice([step for step in (1, 2, 4, 8) if found.batch % step == 0]),
    }
    return shapes, params
