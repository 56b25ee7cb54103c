"""normalization: batch normalization, forward, with an optional tensor added to its output."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.normalization import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.normalization import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
