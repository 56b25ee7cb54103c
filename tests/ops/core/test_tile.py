"""Squares of lanes, turned."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
    ],
)
def test_a_square_of_lanes_is_turned_and_its_surroundings_left(dtype: Any, wide: Any) -> None:
    """Element (i, j) becomes (j, i) as a number, and nothing outside the square is written."""
    from numba import njit

    from ops._core.jit import storage
    from ops._core.tile.jit import LANES_BYTES, turn

    lanes = LANES_BYTES // np.dtype(wide).itemsize

    @njit  # type: ignore[untyped-decorator]
    def run(given: Any, out: Any) -> None:
        turn(given, 2 * 20 + 3, 20, out, 24 + 1, 24)

    given = np.arange(400).astype(dtype)  # bfloat16 holds integers up to 256, and rounds the rest alike
    out = np.full(24 * 24, -1, wide)
    run(storage(given), out)
    expected = np.full((24, 24), -1, wide)
    expected[1 : 1 + lanes, 1 : 1 + lanes] = given.reshape(20, 20)[2 : 2 + lanes, 3 : 3 + lanes].astype(wide).T
    np.testing.assert_array_equal(out.reshape(24, 24), expected)
