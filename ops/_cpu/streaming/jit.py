"""Non-temporal stores: a kernel computes a run of elements into `held_run`, and `put_run` stores it.

Runs are short, so that loads and stores overlap. No arrays are passed to functions in
between: two threads that count references to the same array would contend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from opgauge.ops._cpu.jit import INNER, address
from opgauge.ops._cpu.streaming import LINE_BYTES

uintp = np.uintp
VECTOR_BYTES = 32
RUN = 64
"""Elements per run: few enough to unroll its loop, and whole cache lines."""


@intrinsic
def _on_stack(typingctx: Any, like: Any) -> Any:
    """Stack memory for RUN elements, valid until the function returns."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del arguments
        element = context.get_data_type(signature.args[0].dtype)
        place = cgutils.alloca_once(builder, ir.ArrayType(element, RUN))
        place.align = LINE_BYTES
        return builder.bitcast(place, element.as_pointer())

    return types.CPointer(like.dtype)(like), generate


@njit(inline="always")
def held_run(like: Any) -> Any:
    """RUN elements of the type of the array `like`, on the stack of the calling function."""
    return carray(_on_stack(like), RUN)


@intrinsic
def put_run(typingctx: Any, held: Any, at: Any, out: Any, index: Any) -> Any:
    """Store held[at : at + RUN] to out[index : index + RUN], both flat; out[index] begins a cache line."""
    del typingctx, at, index

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, number = ir.VectorType(ir.IntType(64), VECTOR_BYTES // 8), ir.IntType(32)
        kinds, arrays, indices = signature.args[::2], arguments[::2], arguments[1::2]
        places = [address(context, builder, *place, vector) for place in zip(kinds, arrays, indices, strict=True)]
        streamed = builder.module.add_metadata([ir.Constant(number, 1)])
        for part in range(RUN * kinds[0].dtype.bitwidth // (8 * VECTOR_BYTES)):
            given, kept = (builder.gep(place, [ir.Constant(number, part)]) for place in places)
            value = builder.load(given)
            value.align = kinds[0].dtype.bitwidth // 8
            store = builder.store(value, kept)
            store.align = VECTOR_BYTES
            store.set_metadata("nontemporal", streamed)
        return context.get_dummy_value()

    return types.void(held, types.uintp, out, types.uintp), generate


@intrinsic
def store_fence(typingctx: Any) -> Any:
    """Store fence that makes non-temporal stores visible to other threads; ends each thread's part."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit(**INNER)
def whole_runs(out: Any, start: int, end: int) -> Any:
    """Range of the cache-line-aligned runs within a part of flat `out`; the rest lies before and after."""
    beyond = (out.ctypes.data + start * out.itemsize) % LINE_BYTES
    if beyond % out.itemsize:
        return end, end
    first = min(start + (LINE_BYTES - beyond) % LINE_BYTES // out.itemsize, end)
    return first, end - (end - first) % RUN
