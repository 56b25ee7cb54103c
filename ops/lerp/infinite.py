"""Summed gradients of lerp for an infinite weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf
from typing import Any

from opgauge.ops._core.backend import namespace
from opgauge.ops._core.broadcast import reduced_axes
from opgauge.ops._core.dtype import accumulating
from opgauge.ops._core.kernel import Bound

UNCHANGED = 2.0
"""Weight whose factors, -1 for dx and 2 for dy, make of infinite products what an infinite weight makes of dout."""


def sums_infinite(x: Any, y: Any, dout: Any, weight: Any, out: Mapping[str, Any]) -> bool:
    """Whether the weight is a number that is infinite in the type of sums, and a gradient in `out` is summed."""
    if not isinstance(weight, float | int) or not isinf(accumulating(dout)(weight)):
        return False
    return any(reduced_axes(array.shape, dout.shape) for name, array in (("dx", x), ("dy", y)) if name in out)


def bind_infinite(bind: Callable[..., Bound], *, dout: Any, weight: float, out: dict[str, Any], **given: Any) -> Bound:
    """Calls of `bind`, a kernel of lerp_grad, for the products with an infinite weight and then for their sums.

    The sum of infinite products of both signs is NaN, the product of a sum and infinity is not.
    """
    products = namespace(dout).empty_like(dout)
    alone = {"x": products, "y": products, "need_x": False, "need_y": True}
    multiply = bind(**(given | alone), dout=dout, weight=weight, out={"dy": products})
    add = bind(**given, dout=products, weight=UNCHANGED, out=out)

    def run() -> None:
        multiply()
        add()

    return run
