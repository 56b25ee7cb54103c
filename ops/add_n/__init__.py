"""add_n: the sum of two tensors of one shape; what FuseAddToOutput fuses away."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.add_n import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.add_n import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
