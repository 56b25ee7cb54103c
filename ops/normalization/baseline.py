"""normalization as an Eigen-style composite of array operations, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.axes import sum_array
from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.registry import kernel


@kernel("normalization", "baseline", BACKENDS, FLOATS)
def normalization(
    *,
    x: Any,
    gamma: Any,
    beta: Any,
    axis: int,
    epsilon: float,
    training: bool,
    momentum: float,
    out: dict[str, Any],
    moving_mean: Any = None,
    moving_variance: Any = None,
    add_to_output: Any = None,
) -> None:
    """Mean, centre, square, mean, scale, shift, add: about nine passes over memory."""
    xp = namespace(x)
    axis %= x.ndim
    others = tuple(index for index in range(x.ndim) if index != axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    wide = x.astype(gamma.dtype, copy=False)
    if training:
        n = max(x.size // max(x.shape[axis], 1), 1)
        mean = sum_array(wide, others) / n
        centred = wide - mean.reshape(shape)
        variance = sum_array(xp.square(centred), others) / n
        out["mean"][...] = mean
        out["inv_variance"][...] = 1 / xp.sqrt(variance + epsilon)
        if moving_mean is not None:
            unbiased = variance * (n / max(n - 1, 1))
            out["new_moving_mean"][...] = momentum * moving_mean + (1 - momentum) * mean
            out["new_moving_variance"][...] = momentum * moving_variance + (1 - momentum) * unbiased
    else:
        centred = wide - moving_mean.reshape(shape)
        variance = moving_variance
    normal = centred * (1 / xp.sqrt(variance + epsilon)).reshape(shape)
    y = normal * gamma.reshape(shape) + beta.reshape(shape)
    if add_to_output is not None:
        y = y + add_to_output.astype(gamma.dtype, copy=False)
    out["y"][...] = y
