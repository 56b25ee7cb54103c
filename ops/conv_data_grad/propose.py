"""Random convolutions in both layouts, for `opgauge explore`."""

from __future__ import annotations

from random import Random
from typing import Any

from opgauge.ops._core.draw import draw_convolution
from opgauge.ops._core.op import Shape


def propose(random: Random, elements: int) -> tuple[dict[str, Shape], dict[str, Any]]:
    """Shapes of x_like, filter and sometimes an addend, with matching parameters."""
    found = draw_convolution(random, elements, random.choice((1, 2, 2, 2, 3)))
    last = random.random() < 0.5
    image, per_group = (found.channels,), (found.channels // found.groups,)
    x = (found.batch, *found.size, *image) if last else (found.batch, *image, *found.size)
    weight = (
        (found.out_channels, *found.kernel, *per_group) if last else (found.out_channels, *per_group, *found.kernel)
    )
    shapes: dict[str, Shape] = {"x_like": x, "filter": weight}
    if random.random() < 0.3:
        shapes["add_to_output"] = x
    params = {
        "strides": found.strides,
        "padding_before": found.padding,
        "dilation_rate": found.dilation,
        "groups": found.groups,
        "data_format": "channels_last" if last else "channels_first",
    }
    return shapes, params
