"""Walk over dy with margins, for convolutions of stride 1 on the CPU: each tap is one distance for all pixels."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.op import Array
from opgauge.ops.conv_data_grad.op import ConvGeometry, three


class Walk(NamedTuple):
    """Margins before dy, its padded sizes, each tap's distance in pixels, and pixels of all images that dx reads."""

    margins: tuple[int, ...]
    padded: tuple[int, ...]
    shifts: Array
    pixels: int


def walk_of(found: ConvGeometry) -> Walk:
    """The pixels of dy as laid out: margins after a row, plane or image are those before the next one."""
    kernel, padding, dilation = three(found.kernel, 1), three(found.padding, 0), three(found.dilation, 1)
    size, out_size = three(found.size, 1), three(found.out_size, 1)
    margins = tuple(max(d * (k - 1) - p, 0) for d, k, p in zip(dilation, kernel, padding, strict=True))
    padded = tuple(max(m + out, length + p) for m, out, length, p in zip(margins, out_size, size, padding, strict=True))
    starts = (np.array(margins) + padding)[:, None] - np.indices(kernel).reshape(3, -1) * np.array(dilation)[:, None]
    shifts = (starts[0] * padded[1] + starts[1]) * padded[2] + starts[2]
    return Walk(margins, padded, shifts, found.batch * prod(padded))
