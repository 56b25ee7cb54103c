"""lerp."""

from ops._core.registry import torch_installed
from ops.lerp import baseline, cpu, cuda, op

if torch_installed():
    from ops.lerp import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
