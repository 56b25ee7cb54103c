"""Powers without branches, so that loops over them vectorise: the library's takes 10 ns for one in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from opgauge.ops._cpu.jit import (
    INNER,
    bits_of_double,
    bits_of_float,
    double_of_bits,
    float_of_bits,
    fused_multiply_add,
)


def power(x: Any, p: Any) -> Any:
    """Power x^p for x >= 0: `power_of_double` or `power_of_float`."""
    return x**p


@overload(power, inline="always")
def _choose_power(x: Any, p: Any) -> Any:
    def of_double(x: Any, p: Any) -> Any:
        return power_of_double(x, p)

    def of_float(x: Any, p: Any) -> Any:
        return power_of_float(x, p)

    del p
    return of_double if x == types.float64 else of_float


MOST_HALVES = 15
"""Largest count of `power_of_halves`."""


@njit(**INNER)
def power_of_halves(x: Any, halves: int) -> Any:
    """Power x^(halves / 2) for x >= 0 and |halves| <= MOST_HALVES, by roots and products.

    Loops over x are compiled once for each choice that `halves` decides, so that x^1 to x^3 cost no more than products.
    """
    size, one = abs(halves), type(x)(1)
    base = one / x if halves < 0 else x  # before products, which overflow where the result is subnormal
    value = power_of_integer(base, size >> 1)
    root = np.sqrt(x)
    root = one / root if halves < 0 else root
    return value * root if size & 1 else value


@njit(**INNER)
def power_of_integer(x: Any, exponent: int) -> Any:
    """Power x^exponent for 0 <= exponent <= MOST_HALVES // 2, by products, likewise."""
    square, one = x * x, type(x)(1)
    value = square * square if exponent & 4 else one
    value = value * square if exponent & 2 else value
    return value * x if exponent & 1 else value


ROUNDER = np.float32(1.5 * 2**23)
"""Added to a float32 it leaves the nearest integer in the low bits."""
LARGEST_EXPONENT, SMALLEST_EXPONENT = np.float32(129), np.float32(-152)
INFINITE, ZERO, ONE = np.float32(np.inf), np.float32(0), np.float32(1)
"""Exponents beyond which the result is infinite or zero, and these results."""
# log2((1 + s) / (1 - s)) = s L(s^2) for |s| <= 3 - 2 sqrt(2), relative error 7e-10
LOGARITHM = (2.885390079803, 0.961798838803, 0.576715185940, 0.431717698843)
L0, L1, L2, L3 = (np.float32(c) for c in LOGARITHM)
"""Coefficients of L."""
# 2^f = 1 + f E(f) for |f| <= 1/2, relative error 5e-9
EXPONENTIAL = (0.693147188026, 0.240226507606, 0.055503571142, 0.009618082557, 0.001339086336, 0.000154531629)
E0, E1, E2, E3, E4, E5 = (np.float32(c) for c in EXPONENTIAL)
"""Coefficients of E."""


@njit(error_model="numpy", fastmath=False)  # else it inherits its caller's freedom to reorder
def power_of_float(x: Any, p: Any) -> Any:
    """Power x^p in float32 for x >= 0 and p != 0, without branches, so that loops over it vectorise.

    Computed as 2^(p log2 x) with the integer part of the logarithm separate: the error is a few units in
    the last place for ordinary p, instead of p log2 x units.
    """
    subnormal = x < np.float32(2.0**-126)
    bits = bits_of_float(x * np.float32(2.0**24) if subnormal else x)
    exponent = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    mantissa = float_of_bits(np.int32(bits - np.int32(exponent << np.int32(23))))  # in [sqrt 1/2, sqrt 2)
    e = np.float32(exponent) - (np.float32(24) if subnormal else ZERO)
    s = (mantissa - ONE) / (mantissa + ONE)
    z = s * s
    series = fused_multiply_add(z, fused_multiply_add(z, L3, L2), L1)
    fraction = p * (s * fused_multiply_add(z, series, L0))
    whole = fused_multiply_add(p, e, fraction)
    shifted = min(max(whole, SMALLEST_EXPONENT), LARGEST_EXPONENT) + ROUNDER
    f = fused_multiply_add(p, e, ROUNDER - shifted) + fraction
    series = fused_multiply_add(f, fused_multiply_add(f, E5, E4), E3)
    series = fused_multiply_add(f, fused_multiply_add(f, series, E2), E1)
    value = fused_multiply_add(f, fused_multiply_add(f, series, E0), ONE)
    n = np.int32(bits_of_float(shifted) - np.int32(0x4B400000))
    half = np.int32(n >> np.int32(1))
    value *= float_of_bits(np.int32(np.int32(half + np.int32(127)) << np.int32(23)))
    value *= float_of_bits(np.int32(np.int32(n - half + np.int32(127)) << np.int32(23)))
    value = INFINITE if whole >= LARGEST_EXPONENT else value
    value = ZERO if whole <= SMALLEST_EXPONENT else value
    at_zero = ZERO if p > ZERO else INFINITE
    at_infinity = INFINITE if p > ZERO else ZERO
    value = at_zero if x == ZERO else value
    value = at_infinity if x == INFINITE else value
    return x if x != x else value  # noqa: PLR0124  true for NaN


WIDE_ROUNDER = 1.5 * 2.0**52
"""Likewise for float64."""
HALF_ROOT = 0x3FE6A09E667F3BCD
"""Bits of the square root of 1/2."""
LARGEST_WIDE, SMALLEST_WIDE = 1025.0, -1080.0
"""Exponents beyond which the result is infinite or zero."""
# as above, relative errors 4e-18 and 2e-17
WIDE_LOGARITHM = (
    *(2.8853900817779268, 0.9617966939259898, 0.5770780163455203, 0.4121985858409005),
    *(0.32059853491395984, 0.262334352504183, 0.2209130842311768, 0.2136589569431927),
)
M0, M1, M2, M3, M4, M5, M6, M7 = WIDE_LOGARITHM
WIDE_EXPONENTIAL = (
    *(0.6931471805599453, 0.24022650695910097, 0.0555041086648216, 0.009618129107606888, 0.0013333558146416936),
    *(0.0001540353044173605, 1.525273382983612e-05, 1.321544258792169e-06, 1.0178062445845774e-07),
    *(7.072585949269223e-09, 4.4549605981865186e-10),
)
F0, F1, F2, F3, F4, F5, F6, F7, F8, F9, F10 = WIDE_EXPONENTIAL
"""Coefficients for float64."""


@njit(error_model="numpy", fastmath=False)
def power_of_double(x: Any, p: Any) -> Any:
    """Power x^p in float64 for x >= 0 and p != 0: like `power_of_float`, with shifts that AVX2 has."""
    subnormal = x < 2.0**-1022
    bits = bits_of_double(x * 2.0**54 if subnormal else x)
    exponent = np.int64(np.uint64(bits - HALF_ROOT + (1024 << 52)) >> np.uint64(52)) - 1024
    mantissa = double_of_bits(bits - (exponent << 52))  # in [sqrt 1/2, sqrt 2)
    e = double_of_bits((exponent + 1024) | (0x433 << 52)) - (2.0**52 + 1024) - (54.0 if subnormal else 0.0)
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    series = fused_multiply_add(z, fused_multiply_add(z, M7, M6), M5)
    series = fused_multiply_add(z, fused_multiply_add(z, fused_multiply_add(z, series, M4), M3), M2)
    fraction = p * (s * fused_multiply_add(z, fused_multiply_add(z, series, M1), M0))
    whole = fused_multiply_add(p, e, fraction)
    shifted = min(max(whole, SMALLEST_WIDE), LARGEST_WIDE) + WIDE_ROUNDER
    f = fused_multiply_add(p, e, WIDE_ROUNDER - shifted) + fraction
    series = fused_multiply_add(f, fused_multiply_add(f, F10, F9), F8)
    series = fused_multiply_add(f, fused_multiply_add(f, fused_multiply_add(f, series, F7), F6), F5)
    series = fused_multiply_add(f, fused_multiply_add(f, fused_multiply_add(f, series, F4), F3), F2)
    value = fused_multiply_add(f, fused_multiply_add(f, fused_multiply_add(f, series, F1), F0), 1.0)
    n = bits_of_double(shifted) - bits_of_double(WIDE_ROUNDER) + 2048
    half = np.int64(np.uint64(n) >> np.uint64(1))
    value *= double_of_bits((half - 1024 + 1023) << 52)
    value *= double_of_bits((n - half - 1024 + 1023) << 52)
    value = np.inf if whole >= LARGEST_WIDE else value
    value = 0.0 if whole <= SMALLEST_WIDE else value
    at_zero, at_infinity = (0.0, np.inf) if p > 0 else (np.inf, 0.0)
    value = at_zero if x == 0 else value
    value = at_infinity if x == np.inf else value
    return x if x != x else value  # noqa: PLR0124  true for NaN
