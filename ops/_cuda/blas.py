"""Products of stacks of matrices by cuBLAS, for dtypes and GPUs that `gemm` does not cover.

CuPy's `matmul` launches up to ten kernels around such a product, and takes temporaries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.backend import cupy
from opgauge.ops._core.kernel import Bound

ONE, ZERO = (np.ones(1), np.ones(1, np.float32)), (np.zeros(1), np.zeros(1, np.float32))
"""Factors of the product and of what was there before, in float64 and in float32."""


class _Stack(NamedTuple):
    """A stack as cuBLAS sees it: transposed or not, elements from one line to the next and between matrices.

    step: bytes to the stack of the next call.
    """

    transposed: int
    leading: int
    stride: int
    step: int


def multiply_stacks(a: Any, b: Any, out: Any) -> Bound:
    """A callable for out[n, g] = a[n, g] @ b[n, g], all (N, G, rows, columns); N or G calls of cuBLAS, the fewer.

    out is float32 or float64; factors of another dtype are converted at each call. The last two axes of `a` and `b` may
    be transposed; where their first one is 1, the same matrices serve all of `out`.
    """
    if a.dtype != out.dtype:

        def convert_and_run() -> None:
            multiply_stacks(a.astype(out.dtype, order="C"), b.astype(out.dtype, order="C"), out)()

        return convert_and_run
    cuda = cupy().cuda
    is_single = int(out.dtype == np.float32)
    function = cuda.cublas.sgemmStridedBatched if is_single else cuda.cublas.dgemmStridedBatched
    one, zero = ONE[is_single].ctypes.data, ZERO[is_single].ctypes.data
    if out.shape[1] > out.shape[0]:
        a, b, out = (array.swapaxes(0, 1) for array in (a, b, out))
    (count, calls, rows, columns), depth = out.shape, a.shape[3]
    # cuBLAS counts along columns first: it computes the transposed product of the transposed factors
    left, right, result = _stack(b), _stack(a), _stack(out)
    operations, sizes = (left.transposed, right.transposed), (columns, rows, depth)

    def run() -> None:
        handle = cuda.get_cublas_handle()
        for call in range(calls):
            first, second, third = b.data.ptr + call * left.step, a.data.ptr + call * right.step, out.data.ptr
            factors = (first, left.leading, left.stride, second, right.leading, right.stride)
            to = (third + call * result.step, result.leading, result.stride)
            function(handle, *operations, *sizes, one, *factors, zero, *to, count)

    return run


def _stack(array: Any) -> _Stack:
    (count, calls, rows, columns), size = array.shape, array.dtype.itemsize
    by_matrix, step, by_row, by_column = array.strides
    stride, step = (count > 1) * by_matrix // size, (calls > 1) * step
    if (by_column == size or columns == 1) and (by_row >= columns * size or rows == 1):
        return _Stack(0, max(by_row // size, columns), stride, step)
    return _Stack(1, max(by_column // size, rows), stride, step)
