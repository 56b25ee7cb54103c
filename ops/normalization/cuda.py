"""normalization on CUDA: x is read once if it fits on chip, and partly read again otherwise."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.struct import address, pack
from opgauge.ops.normalization import channels_first, channels_last, passes
from opgauge.ops.normalization.call import STATISTICS, Call, View
from opgauge.ops.normalization.op import NormalizationParams


def _workspace(shapes: Shapes, params: NormalizationParams) -> int:
    """Bytes for arrival counters and flagged partials."""
    view = View.of(shapes.inputs["x"].shape, params.axis)
    wide = dtype_info(shapes.inputs["gamma"].dtype).itemsize
    if view.post == 1:
        return view.counters_bytes + channels_last.flagged_bytes(view, wide)
    return view.counters_bytes + max(passes.flagged_bytes(view, wide), channels_first.flagged_bytes(wide))


@kernel("normalization", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
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
    workspace: Any,
    moving_mean: Any = None,
    moving_variance: Any = None,
    add_to_output: Any = None,
) -> Bound:
    """One launch; two in training for channels first if the tensor is too large or not aligned to vectors."""
    if x.size == 0:
        return lambda: None
    wide = gamma.dtype.type
    layout = STATISTICS[f"Statistics<{dtype_info(gamma.dtype.name).ctype}>"]
    arrays = {"moving_mean": moving_mean, "moving_variance": moving_variance, **out}
    statistics = pack(layout, {name: address(arrays.get(name)) for name in layout.names})
    view = View.of(x.shape, axis)
    call = Call(view, x, add_to_output, out["y"], gamma, beta, statistics, workspace, wide(epsilon), wide(momentum))
    if not training and view.post == 1:
        return passes.apply_columns(call, moving_mean, moving_variance)
    if not training:
        return passes.apply(call, moving_mean, moving_variance, inference=True)
    if view.post == 1:
        return channels_last.bind(call)
    return channels_first.bind(call) or passes.bind(call, out["mean"], out["inv_variance"])
