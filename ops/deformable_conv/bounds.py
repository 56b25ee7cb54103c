"""Parts of the bounds of deformable_conv and its gradient: coordinates, products too small or too large to be held."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.op import Array
from opgauge.ops._core.overflow import accumulated_limits, flushed, overflowing
from opgauge.ops.deformable_conv.reference import overflowing_gradients, overflowing_outputs
from opgauge.ops.deformable_conv.rows import CORNERS
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

PAIR = 2
"""Bytes of the dtypes whose columns are rounded."""
UNITS = 32
"""Allowed rounding of a long sum, in half epsilons of sum |filter| |column|: rejects TF32 (366), takes float32 (24)."""
WOBBLES = 6
"""Allowed changes of coordinates, in epsilons of the root of summed squares. Of a million outputs of inputs that
differ by 2^40 in size, eleven were 4 to 4.6 off."""
DOUBLE_WOBBLES = 2**0.5
"""Factor of that for float64, in which the coordinates of the reference are rounded too, independently."""
LARGE = 2.0**32
"""Magnitude of an input from which lost products of others may matter."""


def wobbles(dtype: str) -> float:
    """Allowed changes of coordinates in `dtype`."""
    return WOBBLES * (DOUBLE_WOBBLES if dtype == "float64" else 1.0)


def small_values(arrays: Mapping[str, Array], dtype: str) -> list[dict[str, Array]]:
    """Arrays of which one, if some of its values may be flushed, has those alone."""
    names = ("x", "filter", "mask", "out_grad")
    small = {name: flushed(arrays[name], dtype) for name in names if name in arrays}
    return [{**arrays, name: array} for name, array in small.items() if np.any(array)]


def lost_products(arrays: Mapping[str, Array], dtype: str) -> list[dict[str, Array]]:
    """Arrays whose products are as small as those that are lost, if another factor makes them large again."""
    if max(float(np.max(np.abs(array), initial=0.0)) for array in arrays.values()) < LARGE:
        return []
    tiny, x, filters, out_grad = accumulated_limits(dtype)[0], *(arrays[name] for name in ("x", "filter", "out_grad"))
    ones = {"mask": np.ones_like(arrays["mask"])} if "mask" in arrays else {}
    columns = {**arrays, **ones, "x": np.full_like(x, tiny)}
    return [{**arrays, "filter": np.ones_like(filters), "out_grad": np.full_like(out_grad, tiny)}, columns]


def with_partial(
    bounds: dict[str, Array | float], arrays: Mapping[str, Array], found: SamplingGeometry, dtype: str
) -> dict[str, Array | float]:
    """`bounds`, which also allow non-finite outputs where a column or its gradient may overflow.

    Columns may be in 16 bits. A factor of 0 makes NaN of an infinite partial result.
    """
    largest = {name: float(np.max(np.abs(array), initial=0.0)) for name, array in arrays.items()}
    column = largest["x"] * max(largest.get("mask", 1.0), 1.0)
    column_gradient = largest.get("out_grad", 0.0) * largest["filter"] * arrays["filter"].shape[0]
    product = column_gradient * max(column, 1.0) * CORNERS * found.channels
    most, most_summed = dtype_info(dtype).largest, accumulated_limits(dtype)[1]
    are_finite = all(map(isfinite, largest.values()))
    if not are_finite or (column <= most and product <= most_summed):
        return bounds
    if "out_grad" in arrays:
        places = overflowing_gradients(arrays, found, most, most_summed)
    else:
        places = overflowing_outputs(arrays, found, most)
    allowed = {name: (np.asarray(bounds[name]), where) for name, where in places.items() if name in bounds}
    return bounds | {name: overflowing(np.abs(one), where | (one < 0)) for name, (one, where) in allowed.items()}
