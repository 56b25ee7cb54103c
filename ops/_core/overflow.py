"""The policy for overflow and underflow, the same for every op; bounds follow it.

Partial results are in the accumulating dtype: float32 for 16-bit floats, the dtype itself otherwise.

- Where every partial result of the formula is finite in that dtype, the output is within the bound.
- Where a sum of magnitudes or of powers is not, as of three times 3e38 in float32, an output may be infinite or NaN. A
  finite one is within the bound all the same: NumPy's and torch's infinity is right, and -5 is wrong.
- Where a result is beyond the output's dtype, the output is infinite with the result's sign.
- What is below the normal range of the accumulating dtype may be lost: terms count as 0, and the bound has their sum.
- A formula whose intermediate values overflow without an infinite result has no bound there: normalization of 1e30,
  whose squared distances are infinite in float32, gives beta in every library.
- NaN and infinite inputs give what the formula gives by IEEE arithmetic.

A bound with a negative sign is `overflowing`: its magnitude for finite outputs, and leave not to be finite.
"""

from __future__ import annotations

import numpy as np
from opgauge.ops._core.op import Array


def overflowing(bound: Array, where: Array) -> Array:
    """`bound`, with leave for outputs that are not finite `where` partial results overflow."""
    least = np.finfo(np.float64).tiny  # so that a bound of 0 keeps its sign
    return np.where(where, -np.maximum(bound, least), bound)
