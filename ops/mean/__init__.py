"""mean: the mean over axes, or of everything."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.mean import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.mean import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
