"""What Numba kernels share: 16-bit floats as bits, and the loop over a row in independent lanes.

Numba has no arrays of float16 or bfloat16. `storage` views them as uint16 and int16; inside a
kernel `widen` turns an element into the number it stands for (float32), and `narrow` back, rounding
to nearest, ties to even. Other dtypes pass through both unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from ops._core.dtype import dtype_info

_VIEWS = {"float16": np.uint16, "bfloat16": np.int16, "bool": np.uint8}
_INT32, _FLOAT = ir.IntType(32), ir.FloatType()


def storage(array: Any) -> Any:
    """`array` as Numba can hold it: float16 as uint16, bfloat16 as int16, bool as uint8; no copy."""
    view = _VIEWS.get(array.dtype.name)
    return array if view is None else array.view(view)


def accumulator(array: Any) -> np.dtype:
    """The dtype that sums over `array` are held in."""
    return dtype_info(dtype_info(array.dtype.name).accumulate).numpy


@intrinsic
def widen(typingctx: Any, value: Any) -> Any:
    """The number that a stored element stands for: float32 for uint16 (half) and int16 (bfloat16)."""
    del typingctx
    result = types.float32 if value in {types.uint16, types.int16} else value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        (bits,) = arguments
        kind = signature.args[0]
        if kind == types.uint16:
            return builder.fpext(builder.bitcast(bits, ir.HalfType()), _FLOAT)
        if kind == types.int16:
            wide = builder.shl(builder.zext(bits, _INT32), ir.Constant(_INT32, 16))
            return builder.bitcast(wide, _FLOAT)
        return bits

    return result(value), generate


@intrinsic
def narrow(typingctx: Any, value: Any, like: Any) -> Any:
    """`value` as the dtype of the stored element `like` keeps it."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, _ = arguments
        given, kept = signature.args
        if kept not in {types.uint16, types.int16}:
            return context.cast(builder, number, given, kept)
        number = context.cast(builder, number, given, types.float32)
        if kept == types.uint16:
            return builder.bitcast(builder.fptrunc(number, ir.HalfType()), ir.IntType(16))
        bits = builder.bitcast(number, _INT32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(_INT32, 16)), ir.Constant(_INT32, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(_INT32, 0x7FFF)), odd)
        quiet = builder.or_(bits, ir.Constant(_INT32, 0x400000))
        is_nan = builder.fcmp_unordered("uno", number, number)
        chosen = builder.select(is_nan, quiet, rounded)
        return builder.trunc(builder.lshr(chosen, ir.Constant(_INT32, 16)), ir.IntType(16))

    return like(value, like), generate


def _bitcast(source: Any, target: Any, llvm: Any) -> Any:
    @intrinsic
    def cast(typingctx: Any, value: Any) -> Any:
        del typingctx, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = context.cast(builder, arguments[0], signature.args[0], source)
            return builder.bitcast(number, llvm)

        return target(source), generate

    return cast


bits_of_float = _bitcast(types.float32, types.int32, _INT32)
float_of_bits = _bitcast(types.int32, types.float32, _FLOAT)


def power(x: Any, p: Any) -> Any:
    """x^p for x >= 0: the library's for float64, `power_of_float` for float32."""
    return x**p


@overload(power, inline="always")
def _choose_power(x: Any, p: Any) -> Any:
    def of_double(x: Any, p: Any) -> Any:
        return x**p

    def of_float(x: Any, p: Any) -> Any:
        return power_of_float(x, p)

    del p
    return of_double if x == types.float64 else of_float


@njit(error_model="numpy")
def power_of_float(x: Any, p: Any) -> Any:
    """x^p in float32 for x >= 0, in a form that vectorises; its error is p (|log2 x| + 1) epsilons.

    log2 by the series of atanh on [sqrt 1/2, sqrt 2], exp2 by its series on [-1/2, 1/2].
    """
    small = x < np.float32(1.1754944e-38)
    scaled = x * np.float32(16777216.0) if small else x
    bits = bits_of_float(scaled)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    mantissa = float_of_bits(np.int32(bits - (exponent << np.int32(23))))
    t = (mantissa - np.float32(1)) / (mantissa + np.float32(1))
    u = t * t
    series = np.float32(0.320598897) + u * np.float32(0.262308189)
    series = np.float32(0.412198585) + u * series
    series = np.float32(0.577078016) + u * series
    series = np.float32(0.961796694) + u * series
    fraction = t * (np.float32(2.885390082) + u * series)
    z = p * (fraction + np.float32(exponent - (np.int32(24) if small else np.int32(0))))
    z = min(max(z, np.float32(-300)), np.float32(300))
    whole = np.floor(z + np.float32(0.5))
    f = z - whole
    result = np.float32(1.33335581e-3) + f * np.float32(1.54035304e-4)
    result = np.float32(9.61812911e-3) + f * result
    result = np.float32(5.55041087e-2) + f * result
    result = np.float32(2.40226507e-1) + f * result
    result = np.float32(6.93147181e-1) + f * result
    result = np.float32(1) + f * result
    n = np.int32(whole)
    half = n >> np.int32(1)
    result = result * float_of_bits(np.int32((half + np.int32(127)) << np.int32(23)))
    result = result * float_of_bits(np.int32((n - half + np.int32(127)) << np.int32(23)))
    infinite = np.float32(np.inf)
    at_zero = np.float32(0) if p > 0 else infinite
    at_infinity = infinite if p > 0 else np.float32(0)
    result = at_zero if x == 0 else result
    result = at_infinity if x == infinite else result
    return x if x != x else result  # noqa: PLR0124  NaN is what differs from itself
