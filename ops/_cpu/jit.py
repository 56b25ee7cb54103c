"""Numba helpers: 16-bit floats as bits, compiler options, bit casts, powers.

Numba has no arrays of float16 or bfloat16. `storage` views them as uint16 and int16; inside a
kernel `widen` converts an element to its value (float32), and `narrow` converts back, rounding
to nearest, ties to even. Other dtypes pass through both unchanged.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import config, prange, types
from numba.core.caching import IndexDataCacheFile
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, overload

from opgauge.ops._core.cache import cache_folder, is_writable
from opgauge.ops._core.dtype import accumulator_info
from opgauge.ops._cpu.threads import load_runtime, parallel

_VIEWS = {"float16": np.uint16, "bfloat16": np.int16, "bool": np.uint8}
_INT32, _FLOAT = ir.IntType(32), ir.FloatType()
_INT64, _DOUBLE = ir.IntType(64), ir.DoubleType()
INNER = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only compiled code calls: without wrappers for Python and C, a third of the compile time.

Calling such a function from Python crashes.
"""
INLINE = {"forceinline": True, **INNER}
"""Options of functions called once per few elements: a call with arrays takes tens of nanoseconds."""


def _keep_apart_what_was_compiled() -> None:
    """Give Numba's cache a folder that depends on the sources of this folder and its neighbours.

    Numba's cache checks a kernel's own file, not the files of the functions that it calls: without this, a changed
    helper would be measured, and judged, in its old version.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.rglob("*.py")))).hexdigest()[:16]
    folder = Path(config.CACHE_DIR or here / "__pycache__" / "numba")
    chosen = folder if is_writable(folder) else cache_folder("numba")
    config.CACHE_DIR = str(chosen / digest)


def _name_files_by_process() -> None:
    """Give the files of Numba's cache names that no other process uses.

    Numba numbers them by function. Two processes that compile two signatures of one at the same time would take the
    same number, and a later one would run the code of the other signature.
    """
    numbered = IndexDataCacheFile._data_name  # noqa: SLF001
    IndexDataCacheFile._data_name = lambda self, number: f"{os.getpid()}-{numbered(self, number)}"  # noqa: SLF001


_keep_apart_what_was_compiled()
_name_files_by_process()
load_runtime()


def _prefer_half_registers() -> None:
    """Compile loops for 256-bit vectors on processors with 512-bit ones, which is LLVM's default for Intel.

    On Zen 4, plain passes over memory take up to 1.3 times as long with full registers, on Zen 5 0.8 to 1.0 times.
    """
    features = get_host_cpu_features()
    asked = config.CPU_NAME is not None or config.CPU_FEATURES is not None
    if not asked and "+avx512f" in features and get_host_cpu_name() != "znver5":
        config.CPU_FEATURES = f"{features},+prefer-256-bit"


_prefer_half_registers()


def _registers(bits: int) -> Any:
    """An intrinsic: loops of the calling function are compiled for vectors of `bits`, or the widest available.

    The function is never inlined, as its caller's width would apply: pass it rows to loop over, and no array that
    was sliced for the call, which is reference-counted.
    """

    @intrinsic
    def prefer(typingctx: Any) -> Any:
        del typingctx

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature, arguments
            attributes = builder.function.attributes
            attributes.add("noinline")
            set.add(attributes, f'"prefer-vector-width"="{bits}"')  # llvmlite's own `add` supports no values
            return context.get_dummy_value()

        return types.void(), generate

    return prefer


whole_registers, half_registers = _registers(512), _registers(256)
"""Vector width for sums (half registers cost up to 8 % on Zen 4, a fifth to a third on Zen 5), and for unaligned row
stores, where each store of a whole register crosses a cache line (rows of 250 floats on Zen 5: 1.2)."""


def storage(array: Any) -> Any:
    """`array` as a type that Numba supports: float16 as uint16, bfloat16 as int16, bool as uint8; no copy."""
    view = _VIEWS.get(array.dtype.name)
    return array if view is None else array.view(view)


def accumulator(array: Any) -> np.dtype:
    """The dtype of sums over `array`."""
    return accumulator_info(array.dtype.name).numpy


@intrinsic
def widen(typingctx: Any, value: Any) -> Any:
    """The value of a stored element: float32 for uint16 (half) and int16 (bfloat16)."""
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
    """`value` as the dtype of the stored element `like`."""
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


def widen_for(value: Any, number: Any) -> Any:
    """The value of a stored element, for a kernel that computes with the type of `number`.

    Unlike `widen`, it leaves 16-bit integers as they are where `number` is one.
    """
    raise NotImplementedError


def narrow_for(value: Any, like: Any, number: Any) -> Any:
    """`value` as the dtype of the stored element `like`, which is an integer if `number` has its type."""
    raise NotImplementedError


@overload(widen_for, inline="always", strict=False)
def _widen_for(value: Any, number: Any) -> Any:
    return (lambda value, number: value) if value == number else (lambda value, number: widen(value))  # noqa: ARG005


@overload(narrow_for, inline="always", strict=False)
def _narrow_for(value: Any, like: Any, number: Any) -> Any:  # noqa: ARG001
    if like == number:
        return lambda value, like, number: type(like)(value)  # noqa: ARG005
    return lambda value, like, number: narrow(value, like)  # noqa: ARG005


@parallel(error_model="numpy")
def convert(source: Any, target: Any) -> None:
    """Convert flat `source` to the dtype of `target`."""
    for index in prange(source.size):
        target[index] = narrow(widen(source[index]), target[index])


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
bits_of_double = _bitcast(types.float64, types.int64, _INT64)
double_of_bits = _bitcast(types.int64, types.float64, _DOUBLE)


_KEYS = {types.float32: types.int32, types.float64: types.int64, types.uint16: types.int16, types.int16: types.int16}
"""Integers of the size of stored elements."""
_INFINITY = {types.float32: 0x7F800000, types.float64: 0x7FF << 52, types.uint16: 0x7C00, types.int16: 0x7F80}
"""Bits of infinity: those of NaN without a sign are larger."""


def _magnitude(*, nan_first: bool) -> tuple[Any, Any]:
    """Two functions: a stored element's magnitude as an integer of the same order, and the value of that integer.

    NaN is the least of all if it is to be first, else the largest. Loops over integers vectorise, those that compare
    with NaN do not.
    """

    def largest(bits: Any) -> int:
        return int((1 << bits.type.width - 1) - 1)

    def shift_of(kind: Any, bits: Any) -> Any:
        return ir.Constant(bits.type, largest(bits) - _INFINITY[kind] if nan_first else 0)

    @intrinsic
    def key(typingctx: Any, value: Any) -> Any:
        del typingctx

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = signature.args[0]
            bits = builder.bitcast(arguments[0], context.get_value_type(_KEYS[kind]))
            mask = ir.Constant(bits.type, largest(bits))
            return builder.add(builder.and_(bits, mask), shift_of(kind, bits))

        return _KEYS[value](value), generate

    @intrinsic
    def value_of(typingctx: Any, bits: Any, like: Any) -> Any:
        del typingctx

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = signature.args[1]
            found = builder.sub(arguments[0], shift_of(kind, arguments[0]))
            return builder.bitcast(found, context.get_value_type(kind))

        return like(bits, like), generate

    return key, value_of


magnitude, value_of_magnitude = _magnitude(nan_first=False)
magnitude_nan_first, value_of_magnitude_nan_first = _magnitude(nan_first=True)


@intrinsic
def fused_multiply_add(typingctx: Any, first: Any, second: Any, addend: Any) -> Any:
    """First times second plus addend, rounded once; all of one float type."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fma(*arguments)

    return first(first, second, addend), generate


@intrinsic
def borrowed(typingctx: Any, array: Any) -> Any:
    """The same array without its reference count, which is atomic: for functions called once per few elements.

    The caller of the kernel owns the array.
    """
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = context.get_constant_null(types.MemInfoPointer(types.voidptr))
        return view._getvalue()  # noqa: SLF001

    return array(array), generate


def address(context: Any, builder: Any, kind: Any, array: Any, index: Any, pointed: Any) -> Any:
    """Pointer to element `index` of an array of type `kind`, as a pointer to the LLVM type `pointed`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), pointed.as_pointer())
