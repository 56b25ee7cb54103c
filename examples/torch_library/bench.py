"""A `torch.library` custom operator that overwrites its input, and one with two outputs."""

from typing import Any, NamedTuple

import numpy as np
import torch

import opgauge


@torch.library.custom_op("opgauge_example::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, factor: float) -> None:
    """Multiply in place."""
    x.mul_(factor)


@torch.library.custom_op("opgauge_example::moments", mutates_args=())
def moments_op(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each row."""
    variance, mean = torch.var_mean(x.float(), -1, correction=0)
    return mean.to(x.dtype), variance.to(x.dtype)


class Moments(NamedTuple):
    """Outputs by name."""

    mean: Any
    variance: Any


@opgauge.op
def scaled(x, *, factor: float = 0.5):
    """Every element times a factor."""
    return x * factor


@opgauge.op
def moments(x) -> Moments:
    """Mean and variance of each row."""
    return Moments(x.mean(-1), x.var(-1))


@scaled.implementation("custom", device=("cpu", "cuda"), arrays="torch", inplace="x")
def scaled_custom(x, *, factor):
    """Overwrites x."""
    torch.ops.opgauge_example.scale_(x, factor)


@moments.implementation("custom", device=("cpu", "cuda"), arrays="torch")
def moments_custom(x):
    """Returns a tuple."""
    return torch.ops.opgauge_example.moments(x)


@moments.implementation("numpy", device="cpu", dtypes=("float32", "float64"))
def moments_numpy(x, out):
    """Fills both outputs."""
    mean, variance = out
    np.mean(x, -1, out=mean)
    np.var(x, -1, out=variance)
