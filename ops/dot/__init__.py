"""dot: the dot product of two vectors, or of each pair of rows."""

from opgauge.ops._core.registry import torch_installed
from opgauge.ops.dot import baseline, cpu, cuda, op

if torch_installed():
    from opgauge.ops.dot import torch

__all__ = ["baseline", "cpu", "cuda", "op", "torch"]
