"""RMS normalization by NumPy."""

import numpy as np

import opgauge


@opgauge.op(flops=lambda x, weight, *, eps: 4 * x.size)
def rms_norm(x, weight, *, eps: float = 1e-6):
    """Root mean square normalization of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@rms_norm.implementation("by_mean", device="cpu")
def by_mean(x, weight, *, eps):
    """Mean of squares in float32."""
    scale = 1 / np.sqrt(np.mean(np.square(x, dtype=np.float32), -1, keepdims=True) + np.float32(eps))
    return (x * scale * weight).astype(x.dtype)


@rms_norm.implementation("by_einsum", device="cpu")
def by_einsum(x, weight, out, *, eps):
    """Sum of squares as a product, the output filled in place."""
    wide = x.astype(np.float32)
    squares = np.einsum("ij,ij->i", wide, wide) / np.float32(x.shape[-1])
    np.multiply(wide / np.sqrt(squares + np.float32(eps))[:, None], weight, out=out, casting="same_kind")
