"""sign on the CPU by Numba."""

from __future__ import annotations

from functools import partial
from typing import Any

from opgauge.ops._core.dtype import COMPLEX, FLOATS, INTS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count


@kernel("sign", "optimized", "cpu", (*FLOATS, *INTS), prepare=True)
def sign(*, x: Any, out: dict[str, Any]) -> Bound:
    """Read and write each element once."""
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.sign import jit

    source, target = storage(x).reshape(-1), storage(out["out"]).reshape(-1)
    number = accumulator(x) if x.dtype.name in FLOATS else x.dtype
    threads = count(2 * x.nbytes, 2 * x.size)
    function = jit.sign_streaming if streaming.pays(source, target) else jit.sign_flat
    return partial(function.on(threads), source, number.type(0), number.type(1), target, threads)


@kernel("sign", "optimized", "cpu", COMPLEX, prepare=True)
def sign_of_complex(*, x: Any, out: dict[str, Any]) -> Bound:
    """Quotient x / |x|, whose magnitude cannot overflow."""
    from opgauge.ops.sign import jit

    threads = count(2 * x.nbytes, 32 * x.size)
    part = x.real.dtype
    source, target = x.reshape(-1).view(part), out["out"].reshape(-1).view(part)
    return partial(jit.sign_complex.on(threads), source, target, part.type(0), part.type(1), threads)
