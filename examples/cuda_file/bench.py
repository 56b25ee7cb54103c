"""RMS normalization by a plain `.cu` file, compiled by NVRTC."""

import numpy as np

import opgauge

kernel = opgauge.cuda_source("rms_norm.cu", "rms_norm")


@opgauge.op(flops=lambda x, weight, *, eps: 4 * x.size)
def rms_norm(x, weight, *, eps: float = 1e-6):
    """Root mean square normalization of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@rms_norm.implementation("cuda", device="cuda", dtypes=("float32",))
def rows(x, weight, out, *, eps):
    """One thread block per row."""
    kernel[x.shape[0], 256](x, weight, out, x.shape[1], eps)
