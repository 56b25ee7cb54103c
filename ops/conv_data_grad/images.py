"""Products of several images at once by BLAS, for conv_data_grad on the CPU."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.op import Array
from opgauge.ops._cpu.threads import count
from opgauge.ops.conv_data_grad.op import ConvGeometry

STEP_BYTES = 1 << 18
"""Bytes of the columns and results of small images that are computed in one step."""
FEW_PIXELS, MANY_PIXELS, MOST_STEP_BYTES = 12, 64, 1 << 26
"""Pixels of an image below which images share a product; pixels of a step that may take more bytes; their maximum."""
SHORT_ROW, MOST_LINKS = 8, 4096
"""Outputs of a row below which additions are listed, and their maximum number in a list."""


def links_of(found: ConvGeometry) -> tuple[Array, Array] | None:
    """Offsets in a channel's columns, and in its dx, of all that is added; None for rows that vectors pay for."""
    if found.is_pointwise or not found.out_size or found.out_size[-1] >= SHORT_ROW:
        return None
    if prod((*found.kernel, *found.out_size)) > MOST_LINKS:
        return None
    rank = len(found.size)
    taps, outs = (np.indices(lengths).reshape(rank, -1) for lengths in (found.kernel, found.out_size))
    strides, padding, dilation, size = (
        np.array(values).reshape(rank, 1, 1) for values in (found.strides, found.padding, found.dilation, found.size)
    )
    places = outs[:, None] * strides - padding + taps[:, :, None] * dilation
    inside = ((places >= 0) & (places < size)).all(axis=0)
    return np.flatnonzero(inside), np.ravel_multi_index(tuple(places[:, inside]), found.size)


def share_products(found: ConvGeometry) -> bool:
    """Whether images, channels first, have so few pixels that each would read the filter for little."""
    return not found.channels_last and found.batch > 1 and prod(found.out_size) < FEW_PIXELS


def images_at_once(found: ConvGeometry, wide: Any) -> tuple[int, int]:
    """Images per step, whose columns and results fit the second-level cache, and threads that pay for their fold."""
    columns = found.channels * prod(found.kernel) * prod(found.out_size)
    nbytes = wide.itemsize * (columns + found.channels * prod(found.size))
    enough = MANY_PIXELS // max(prod(found.out_size), 1) if MANY_PIXELS * nbytes <= MOST_STEP_BYTES else 1
    at_once = min(max(STEP_BYTES // max(nbytes, 1), enough, 1), max(found.batch, 1))
    return at_once, count(at_once * nbytes)


def columns_of(rows: Any, given: Any, out: Any = None) -> Any:
    """Products (images, groups, C / groups * taps, pixels), by BLAS.

    Images of so few pixels that each would read the filter for little share one product.
    """
    images, groups, outs, pixels = given.shape
    if images == 1 or pixels >= FEW_PIXELS:
        return np.matmul(rows, given, out=out)
    beside = given.transpose(1, 2, 0, 3).reshape(groups, outs, images * pixels)
    found = np.matmul(rows, beside).reshape(groups, -1, images, pixels).transpose(2, 0, 1, 3)
    if out is None:
        return np.ascontiguousarray(found)
    out[...] = found
    return out
