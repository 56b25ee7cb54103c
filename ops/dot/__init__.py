"""dot: the dot product of two vectors, or of each pair of rows."""

from ops._core.registry import torch_installed
from ops.dot import baseline, cpu, cuda, op

if torch_installed():
    from ops.dot import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
