"""fill_any_like."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.fill_any_like import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.fill_any_like import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
