"""sign."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.sign import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.sign import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
