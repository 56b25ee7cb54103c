"""sign."""

from ops._core.registry import torch_installed
from ops.sign import baseline, cpu, cuda, op

if torch_installed():
    from ops.sign import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
