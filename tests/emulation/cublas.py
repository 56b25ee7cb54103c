"""cuBLAS on the host: strided-batched products of matrices that lie column by column at addresses of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

CTYPES = {"s": ctypes.c_float, "d": ctypes.c_double}
"""Elements by the letter that cuBLAS' names begin with."""


def emulated_cuda() -> Any:
    """What `ops/_cuda/blas.py` uses of `cupy.cuda`."""
    functions = {f"{letter}gemmStridedBatched": _product(ctype) for letter, ctype in CTYPES.items()}
    return SimpleNamespace(cublas=SimpleNamespace(**functions), get_cublas_handle=lambda: 0)


def _product(ctype: Any) -> Callable[..., None]:
    """cuBLAS' function, with its arguments."""

    def matrix(address: int, leading: int, rows: int, columns: int) -> Any:
        assert leading >= rows
        memory = np.ctypeslib.as_array((ctype * (leading * (columns - 1) + rows)).from_address(address))
        return as_strided(memory, (rows, columns), (memory.itemsize, leading * memory.itemsize))

    def multiply(*arguments: int) -> None:
        _, of_a, of_b, m, n, k, one, a, lda, step_a, b, ldb, step_b, zero, c, ldc, step_c, count = arguments
        assert (ctype.from_address(one).value, ctype.from_address(zero).value) == (1, 0)
        for number in range(count):
            at = number * ctypes.sizeof(ctype)
            first = matrix(a + at * step_a, lda, *((k, m) if of_a else (m, k)))
            second = matrix(b + at * step_b, ldb, *((n, k) if of_b else (k, n)))
            product = np.matmul(first.T if of_a else first, second.T if of_b else second)
            matrix(c + at * step_c, ldc, m, n)[...] = product

    return multiply
