"""p_norm and p_norm_grad: the p-norm over an axis, two axes or everything, and its gradient."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.p_norm import baseline, cpu, cuda, cuda_grad, cuda_three_kernel, op

if torch_installed():
    from opgauge.ops.p_norm import torch

__all__ = ["baseline", "cpu", "cuda", "cuda_grad", "cuda_three_kernel", "op", "torch"]
