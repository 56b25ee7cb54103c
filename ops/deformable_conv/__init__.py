"""deformable_conv (v1 and v2) and its gradient."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.deformable_conv import baseline, cpu, cuda, cuda_fused, cuda_grad, op

if torch_installed():
    from opgauge.ops.deformable_conv import torch

__all__ = ["baseline", "cpu", "cuda", "cuda_fused", "cuda_grad", "op", "torch"]
