"""sign on the CPU by Numba; complex numbers and int16 by NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from opgauge.ops._core.dtype import COMPLEX, FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops.sign.op import DTYPES

SMALL = 1 << 15
"""Elements below which one thread is faster than several."""
BY_NUMPY = ("int16", *COMPLEX)
REAL = tuple(name for name in DTYPES if name not in BY_NUMPY)


@kernel("sign", "optimized", "cpu", REAL, prepare=True)
def sign(*, x: Any, out: dict[str, Any]) -> Bound:
    """One pass."""
    from numba import get_num_threads
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.sign import jit

    source, target = storage(x).reshape(-1), storage(out["out"]).reshape(-1)
    number = accumulator(x) if x.dtype.name in FLOATS else x.dtype
    zero, one = number.type(0), number.type(1)
    if streaming.pays(source, target):
        return partial(jit.sign_streaming, source, zero, one, target, get_num_threads())
    function = jit.sign_of_few if x.size < SMALL else jit.sign_of_many
    return partial(function, source, zero, one, target)


@kernel("sign", "optimized", "cpu", BY_NUMPY, strided=True)
def sign_by_numpy(*, x: Any, out: dict[str, Any]) -> None:
    """`numpy.sign`: Numba's kernels take 16-bit integers for bfloat16."""
    np.sign(x, out=out["out"])
