"""A model of the root of a sum in norm.cuh: PTX's approximations at the limit of their documented errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

F = np.float32
LOGARITHM_ERROR, EXPONENTIAL_ERROR = 2.0**-22, 2.0**-22
"""Maximum errors of lg2.approx.f32 between 1 and 2, absolute, and of ex2.approx.f32, relative (PTX ISA)."""
EPSILON = float(np.finfo(F).eps)


def power_of_sum(x: Any, p: np.float32, sign: int) -> Any:
    """What the kernel computes if every approximation errs by its maximum in one direction."""
    significand, exponent = np.frexp(x)
    significand, exponent = (significand * 2).astype(F), (exponent - 1).astype(F)
    whole = np.minimum(np.rint(exponent * p), F(127))
    rest = (exponent.astype(np.float64) * float(p) - whole).astype(F)
    logarithm = (np.log2(significand.astype(np.float64)) + sign * LOGARITHM_ERROR).astype(F)
    at = (logarithm.astype(np.float64) * float(p) + rest).astype(F)
    result = (2.0 ** at.astype(np.float64) * (1 + sign * EXPONENTIAL_ERROR)).astype(F)
    return result * (2.0 ** whole.astype(np.float64)).astype(F)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("porder", [0.3, 0.5, 0.7, 1.5, 2.5, 3.0, 4.0, 7.3, 100.0, -1.0, -0.4, -3.0])
def test_the_root_of_a_sum_is_within_its_bound(porder: float, sign: int) -> None:
    """The error of y is at most 4 + |log2 y| epsilons, and 8 / |p| that the sum's own rounding is allowed."""
    x = (2.0 ** np.random.default_rng(1).uniform(-125, 127.9, 20_000)).astype(F)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float64) ** (1 / porder)
        found = power_of_sum(x, F(1 / porder), sign)
        normal = (wanted > np.finfo(F).tiny) & (wanted < np.finfo(F).max * (1 - 1e-4))
        error = np.abs(found[normal] / wanted[normal] - 1) / EPSILON
    assert normal.sum() > 4000
    assert np.all(error <= 4 + np.abs(np.log2(wanted[normal])) + 8 / abs(porder))


def test_a_root_that_is_nearly_infinite_is_finite() -> None:
    """The power of two that scales a result does not overflow before the result does."""
    x = np.array([2.0**51.1], F)
    assert np.isfinite(power_of_sum(x, F(2.5), 1)).all()
