"""lerp."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.lerp import baseline, cpu, cuda, cuda_grad, op

if torch_installed():
    from opgauge.ops.lerp import torch

__all__ = ["baseline", "cpu", "cuda", "cuda_grad", "op", "torch"]
