"""Roots of the norms on the CPU, by multiplications only, and of sums for float32."""

from __future__ import annotations

import numpy as np


def test_cube_roots_are_good_to_a_few_units_over_all_of_float64() -> None:
    """From 1e-300 to 1e300 within 8 units; 0, infinity and NaN stay; what is subnormal is not made larger."""
    from opgauge.ops._cpu.jit_roots import cube_root

    numbers = 10.0 ** np.random.default_rng(3).uniform(-300, 300, 2000)
    found = np.array([cube_root(number) for number in numbers])
    np.testing.assert_allclose(found, np.cbrt(numbers), rtol=8 * np.finfo(float).eps)
    assert cube_root(0.0) == 0
    assert cube_root(np.inf) == np.inf
    assert np.isnan(cube_root(np.nan))
    assert 0 < cube_root(5e-324) <= np.cbrt(5e-324)


def test_roots_for_float32_are_good_to_a_fraction_of_its_unit() -> None:
    """Of any normal float64 and order; 0, infinity and NaN as powers have them."""
    from opgauge.ops._cpu.jit_roots import root_of_double

    rng = np.random.default_rng(4)
    numbers = np.concatenate([10.0 ** rng.uniform(-300, 300, 3000), 1 + rng.uniform(-1e-6, 1e-6, 100), [0.5, 1.0, 2.0]])
    for order in (1.0, 1.5, 2.5, -1.0, -2.0, 7.0, 1e3):
        p = np.float32(order)
        found = np.array([root_of_double(number, p) for number in numbers])
        np.testing.assert_allclose(found, numbers ** (1 / float(p)), rtol=2e-8)
    for p in (np.float32(1.5), np.float32(-1.5)):
        expected = (0.0, np.inf) if p > 0 else (np.inf, 0.0)
        assert (root_of_double(0.0, p), root_of_double(np.inf, p)) == expected
        assert np.isnan(root_of_double(np.nan, p))
