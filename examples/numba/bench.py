"""RMS normalization by Numba on the CPU."""

import numpy as np
from numba import njit, prange

import opgauge


@opgauge.op(flops=lambda x, weight, *, eps: 4 * x.size)
def rms_norm(x, weight, *, eps: float = 1e-6):
    """Root mean square normalization of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@njit(parallel=True, fastmath=True)
def normalize(x, weight, eps, out):
    """One row per iteration."""
    for row in prange(x.shape[0]):
        squares = np.float32(0)
        for column in range(x.shape[1]):
            squares += x[row, column] * x[row, column]
        scale = 1 / np.sqrt(squares / np.float32(x.shape[1]) + eps)
        for column in range(x.shape[1]):
            out[row, column] = x[row, column] * scale * weight[column]


@rms_norm.implementation("numba", device="cpu", dtypes=("float32",))
def numba_rows(x, weight, out, *, eps):
    """Rows in parallel."""
    normalize(x, weight, np.float32(eps), out)
