"""The policy for overflow and underflow, common to all ops; bounds follow it.

Partial results are in the accumulating dtype: float32 for 16-bit floats, the dtype itself otherwise.

- If every partial result of the formula is finite in that dtype, the output is within the bound.
- If a sum of magnitudes or of powers is not, as of three times 3e38 in float32, an output may be infinite or NaN. A
  finite one is within the bound all the same: NumPy's and torch's infinity is right, and -5 is wrong.
- If a result exceeds the output's dtype, the output is infinite with the result's sign.
- Values below the normal range of the accumulating dtype may be flushed: terms count as 0, and the bound includes
  their sum.
- A formula whose intermediate values overflow although its result is finite has no bound there: normalization of
  1e30, whose squared distances are infinite in float32, gives beta in every library.
- NaN and infinite inputs give the formula's result in IEEE arithmetic.

A bound with a negative sign is `overflowing`: its magnitude applies to finite outputs, and others are allowed.
"""

from __future__ import annotations

import numpy as np

from opgauge.ops._core.op import Array


def overflowing(bound: Array, where: Array) -> Array:
    """`bound`, which also allows non-finite outputs `where` partial results overflow."""
    least = np.finfo(np.float64).tiny  # so that a bound of 0 keeps its sign
    return np.where(where, -np.maximum(bound, least), bound)
