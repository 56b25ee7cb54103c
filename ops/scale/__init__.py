"""scale."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.scale import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.scale import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
