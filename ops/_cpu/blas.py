"""Products of matrices by NumPy's BLAS, in the calling thread while other processes use the processors.

A thread of BLAS that shares its processor lets the caller wait, as those of Numba do: see `opgauge.ops._cpu.load`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from opgauge.ops._cpu.load import HOST

_WITH_SMALL_PRODUCTS = {"SkylakeX", "Cooperlake", "SapphireRapids"}


def matmul(first: Any, second: Any, out: Any = None) -> Any:
    """`numpy.matmul` on all threads of BLAS while processors are free, else on one; their number is put back."""
    if HOST.leaves_processors():
        return np.matmul(first, second, out=out)
    limited = [(library, threads) for library in _libraries() if (threads := library.get_num_threads()) != 1]
    for library, _ in limited:
        library.set_num_threads(1)
    try:
        return np.matmul(first, second, out=out)
    finally:
        for library, threads in limited:
            library.set_num_threads(threads)


@cache
def has_small_products() -> bool:
    """Whether BLAS has kernels for small products, which pack no operand: OpenBLAS' for AVX-512, not AMD's."""
    return any(getattr(library, "architecture", None) in _WITH_SMALL_PRODUCTS for library in _libraries())


@cache
def _libraries() -> list[Any]:
    """The loaded libraries for products, whose context manager would take 15 to 20 us per product."""
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
