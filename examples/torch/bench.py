"""RMS normalization by a torch function, on both devices, with a prepared `torch.compile` variant."""

import numpy as np
import torch

import opgauge


@opgauge.op(flops=lambda x, weight, *, eps: 4 * x.size)
def rms_norm(x, weight, *, eps: float = 1e-6):
    """Root mean square normalization of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@rms_norm.implementation("eager", device=("cpu", "cuda"), arrays="torch")
def eager(x, weight, *, eps):
    """`torch.nn.functional.rms_norm`."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


@rms_norm.implementation("compiled", device="cuda", arrays="torch", prepare=True, variant=True)
def compiled(x, weight, *, eps):
    """The same, compiled before it is timed."""
    function = torch.compile(torch.nn.functional.rms_norm, dynamic=False)
    return lambda: function(x, weight.shape, weight, eps)
