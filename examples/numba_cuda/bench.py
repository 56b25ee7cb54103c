"""RMS normalization by Numba on CUDA, launched on the stream that is timed."""

import math

import numpy as np
from numba import cuda

import opgauge


@opgauge.op(flops=lambda x, weight, *, eps: 4 * x.size)
def rms_norm(x, weight, *, eps: float = 1e-6):
    """Root mean square normalization of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@cuda.jit
def kernel(x, weight, out, eps):
    """One thread per row."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        squares = np.float32(0)
        for column in range(x.shape[1]):
            squares += x[row, column] * x[row, column]
        scale = np.float32(1) / math.sqrt(squares / np.float32(x.shape[1]) + eps)
        for column in range(x.shape[1]):
            out[row, column] = x[row, column] * scale * weight[column]


@rms_norm.implementation("numba_cuda", device="cuda", arrays="numba", dtypes=("float32",))
def rows(x, weight, out, stream, *, eps):
    """One thread per row."""
    kernel[(x.shape[0] + 63) // 64, 64, cuda.external_stream(stream)](x, weight, out, np.float32(eps))
