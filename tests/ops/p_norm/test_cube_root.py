"""The cube root of p_norm on the CPU, by multiplications only."""

from __future__ import annotations

import numpy as np


def test_cube_roots_are_good_to_a_few_units_over_all_of_float64() -> None:
    """From 1e-300 to 1e300 within 8 units; 0, infinity and NaN stay; what is subnormal is not made larger."""
    from opgauge.ops.p_norm import jit

    numbers = 10.0 ** np.random.default_rng(3).uniform(-300, 300, 2000)
    found = np.array([jit._cube_root(number) for number in numbers])
    np.testing.assert_allclose(found, np.cbrt(numbers), rtol=8 * np.finfo(float).eps)
    assert jit._cube_root(0.0) == 0
    assert jit._cube_root(np.inf) == np.inf
    assert np.isnan(jit._cube_root(np.nan))
    assert 0 < jit._cube_root(5e-324) <= np.cbrt(5e-324)
