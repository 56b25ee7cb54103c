"""flatten as a reshape and a copy, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.errors import ParameterError
from opgauge.ops._core.registry import kernel
from opgauge.ops.flatten.op import DTYPES, FlattenParams, flat_shape


def view_of(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` in `shape` without a copy; raises ParameterError if its strides do not allow that."""
    if not x.flags.c_contiguous:
        msg = "x is not contiguous: a flattened view of it does not exist"
        raise ParameterError(msg)
    return x.reshape(shape)


@kernel("flatten", "baseline", BACKENDS, DTYPES, strided=True)
def flatten(*, x: Any, start_axis: int, stop_axis: int, copy: bool, out: dict[str, Any]) -> tuple[Any] | None:
    """A contiguous reshape (a copy where x is strided), then a copy; or the view."""
    shape = flat_shape(x.shape, FlattenParams(start_axis, stop_axis, copy))
    if not copy:
        return (view_of(x, shape),)
    out["out"][...] = x.reshape(shape)
    return None
