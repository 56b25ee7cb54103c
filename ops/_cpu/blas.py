"""Products of matrices by NumPy's BLAS, in the calling thread while other processes use the processors.

A thread of BLAS that shares its processor lets the caller wait, as those of Numba do: see `opgauge.ops._cpu.load`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from opgauge.ops._cpu.load import HOST


def matmul(first: Any, second: Any, out: Any = None) -> Any:
    """`numpy.matmul` on all threads of BLAS while processors are free, else on one; their number is put back."""
    if HOST.leaves_processors():
        return np.matmul(first, second, out=out)
    with _libraries().limit(limits=1, user_api="blas"):
        return np.matmul(first, second, out=out)


@cache
def _libraries() -> Any:
    """The loaded libraries with threads."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
