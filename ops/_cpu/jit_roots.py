"""Roots of sums in float64, without branches, so that loops over them vectorise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from opgauge.ops._cpu.jit import bits_of_double, double_of_bits
from opgauge.ops._cpu.jit_powers import EXPONENTIAL, HALF_ROOT, LOGARITHM, WIDE_ROUNDER, power_of_double

GUESS = int(1363.9332 * 2**52)
"""Initial guess of x^(-1/3): this minus a third of the bits of x, 3 % off at most."""
L0, L1, L2, L3 = LOGARITHM
E0, E1, E2, E3, E4, E5 = EXPONENTIAL
"""Coefficients of `power_of_float`, here in float64."""


@njit(error_model="numpy")
def cube_root(x: Any) -> Any:
    """Cube root of a non-negative float64, to a few units, without division and branches, so that loops vectorise.

    x^(-1/3) is guessed from the bits of x, and improved by the residual 1 - x guess^3.
    """
    bits = bits_of_double(x)
    third = (bits >> 2) + (bits >> 4)
    third += third >> 4
    third += third >> 8
    guess = double_of_bits(GUESS - third)
    for _ in range(3):
        error = 1.0 - x * guess * guess * guess
        guess += guess * error * (1 / 3 + 2 / 9 * error)
    return x if x == np.inf else x * guess * guess


@njit(error_model="numpy")
def root_of_double(x: Any, p: Any) -> Any:
    """Root x^(1/p) of a non-negative float64 that is 0 or normal, for a result in float32: relative error 1e-8."""
    bits = bits_of_double(x)
    exponent = np.int64(np.uint64(bits - HALF_ROOT + (1024 << 52)) >> np.uint64(52)) - 1024
    mantissa = double_of_bits(bits - (exponent << 52))  # in [sqrt 1/2, sqrt 2)
    e = double_of_bits((exponent + 1024) | (0x433 << 52)) - (2.0**52 + 1024)
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    wanted = (e + s * (L0 + z * (L1 + z * (L2 + z * L3)))) / np.float64(p)
    wanted = min(max(wanted, -1000.0), 1000.0)
    shifted = wanted + WIDE_ROUNDER
    f = wanted - (shifted - WIDE_ROUNDER)
    value = 1 + f * (E0 + f * (E1 + f * (E2 + f * (E3 + f * (E4 + f * E5)))))
    value *= double_of_bits((bits_of_double(shifted) - bits_of_double(WIDE_ROUNDER) + 1023) << 52)
    at_zero, at_infinity = (0.0, np.inf) if p > 0 else (np.inf, 0.0)
    value = at_zero if x == 0 else value
    value = at_infinity if x == np.inf else value
    return x if x != x else value  # noqa: PLR0124  true for NaN


def root(x: Any, p: Any) -> Any:
    """Root x^(1/p) for x >= 0: to a unit or two for a float64 p, by `root_of_double` for float32."""
    return x ** (1 / p)


@overload(root, inline="always")
def _choose_root(x: Any, p: Any) -> Any:
    def exact(x: Any, p: Any) -> Any:
        return power_of_double(x, 1.0 / p)

    def in_vectors(x: Any, p: Any) -> Any:
        return root_of_double(x, p)

    del x
    return exact if p == types.float64 else in_vectors
