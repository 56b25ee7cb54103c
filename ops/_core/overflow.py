"""The policy for overflow and underflow, common to all ops; bounds follow it.

Partial results are in the accumulating dtype: float32 for 16-bit floats, the dtype itself otherwise.

- If every partial result of the formula is finite in that dtype, the output is within the bound.
- If a sum of magnitudes or of powers is not, as of three times 3e38 in float32, an output may be infinite or NaN. A
  finite one is within the bound all the same: NumPy's and torch's infinity is right, and -5 is wrong.
- If all terms of such a sum have one sign, only the infinity of that sign is right, and no NaN.
- If a result exceeds the output's dtype, the output is infinite with the result's sign.
- Values below the normal range of the accumulating dtype may be flushed, inputs, products, results and parameters
  alike: CuPy compiles composites so. Terms count as 0, and the bound includes their sum (`flushed`). Kernels of opgauge
  preserve such values.
- A rounded 16-bit intermediate value is off by half its epsilon, near 0 by half the smallest subnormal.
- If an intermediate value overflows and the result is small, the output is between 0 and twice the result:
  normalization of 1e30, whose squared distances are infinite in float32, gives beta in every library.
- NaN and infinite inputs give the formula's result in IEEE arithmetic.

A bound with a negative sign is `overflowing`: its magnitude applies to finite outputs, and others are allowed. Where
`bounds[sign_of(name)]` is SIGNED or SIGNED_NUMBER, outputs of the other sign than the reference's are wrong all the
same, and with SIGNED_NUMBER so is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opgauge.ops._core.dtype import accumulator_info
from opgauge.ops._core.op import Array

MARGIN = 2.0**-10
"""Relative distance to the largest number within which a rounded sum may overflow."""
SIGNED, SIGNED_NUMBER = 1.0, 2.0
"""An output has the reference's sign; it is no NaN either."""


def overflowing(bound: Array, where: Array) -> Array:
    """`bound`, which also allows non-finite outputs `where` partial results overflow."""
    least = np.finfo(np.float64).tiny  # so that a bound of 0 keeps its sign
    return np.where(where, -np.maximum(bound, least), bound)


def sign_of(name: str) -> str:
    """Key, beside an output's bound, of what is known about its sign: 0, SIGNED or SIGNED_NUMBER."""
    return f"sign of {name}"


def accumulated_limits(dtype: str) -> tuple[float, float]:
    """Smallest normal and largest number of the accumulating dtype."""
    info = accumulator_info(dtype)
    return float(np.finfo(info.numpy).tiny), info.largest


def flushed(values: Array, dtype: str) -> Array:
    """Magnitudes of values below the normal range of the accumulating dtype, which may count as 0; 0 for others."""
    magnitudes = np.abs(values)
    return np.where(magnitudes < accumulated_limits(dtype)[0], magnitudes, 0.0)


def sum_bounds(
    name: str, bound: Array, magnitude: Array, limit: float, signs: Callable[[], tuple[Array, Array]] | None = None
) -> dict[str, Array | float]:
    """Bounds of the output `name` that sums terms whose magnitudes add up to `magnitude`.

    limit: largest number of the accumulating dtype, in the units of both. Magnitudes are infinite for infinite inputs.
    signs: sum of the terms' signs, and number of terms that are not 0; None: unknown.
    """
    beyond = (magnitude > limit * (1 - MARGIN)) & np.isfinite(magnitude)
    if not np.any(beyond):
        return {name: bound}
    bounds: dict[str, Array | float] = {name: overflowing(bound, beyond)}
    if signs is not None:
        total, count = signs()
        bounds[sign_of(name)] = SIGNED_NUMBER * (beyond & (np.abs(total) == count))
    return bounds
