"""conv_data_grad: the gradient of a convolution with respect to its input, with an optional addend."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.conv_data_grad import baseline, cpu, cuda, cuda_gather, op

if torch_installed():
    from opgauge.ops.conv_data_grad import torch

__all__ = ["baseline", "cpu", "cuda", "cuda_gather", "op", "torch"]
