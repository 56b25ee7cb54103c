"""Elements of rounded outputs that rounding may change: quantized numbers, counts of a histogram, comparisons.

Such outputs are integers, bool or floats of 8 bits that follow from floating-point inputs. Where a value lies next to
the boundary between two of them, a correct kernel may return either. The reference is called on inputs that differ by
the rounding errors of a kernel, in both directions; elements that change to a neighbour may do so in a kernel. Larger
changes are not allowed: of a sorted index, every neighbour is another element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import sqrt

import numpy as np

from opgauge.ops._core.dtype import FLOATS_8, dtype_info
from opgauge.ops._core.op import Array

NEXT_TO = "next to {}"
"""Name of the bound of an exact output: the distance of an element that rounding may change, else 0."""
PAIRS = 2
"""Pairs of calls with opposite changes: the changes of a number and of its scale may cancel."""
ROUNDINGS = 8.0
"""Rounding errors of the accumulating dtype by which inputs are changed, besides one of their own."""
Call = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def near_ties(
    call: Call, inputs: Mapping[str, Array], outputs: Mapping[str, Array], dtype: str
) -> dict[str, Array | float]:
    """Bounds of rounded outputs by name: `NEXT_TO` of exact ones, those of floats of 8 bits under their own name."""
    rounded = [name for name, value in outputs.items() if value.dtype.kind in "iub" or value.dtype.name in FLOATS_8]
    floating = {name: value for name, value in inputs.items() if value.dtype.kind in "fc" and value.size}
    if not rounded or not floating:
        return {}
    size = _change(dtype, max(length for value in floating.values() for length in (1, *value.shape)))
    found: dict[str, Array] = {name: np.zeros(outputs[name].shape) for name in rounded}
    rng = np.random.Generator(np.random.PCG64(2))
    for _ in range(PAIRS):
        shares = {name: size * _signed(rng, value.shape) for name, value in floating.items()}
        for sign in (1, -1):
            changed = {name: value * (1 + sign * shares[name]) for name, value in floating.items()}
            again: Mapping[str, Array] = {}
            with suppress(Exception):  # a user's function may refuse these values
                again = call({**inputs, **changed})
            for name in again.keys() & found.keys():
                if again[name].shape == found[name].shape:
                    np.maximum(found[name], _step(outputs[name], again[name]), out=found[name])
    return {name if outputs[name].dtype.name in FLOATS_8 else NEXT_TO.format(name): one for name, one in found.items()}


def _change(dtype: str, longest: int) -> float:
    """Relative change of inputs that stands for the rounding errors of a kernel with sums of some length."""
    info = dtype_info(dtype if dtype_info(dtype).epsilon and dtype not in FLOATS_8 else "float32")
    return info.epsilon + ROUNDINGS * dtype_info(info.accumulate).epsilon * sqrt(longest)


def _signed(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of 0.5 to 1.5 with random signs."""
    drawn = rng.random(shape) - 0.5
    return np.asarray(drawn * 2 + np.copysign(0.5, drawn))


def _step(before: Array, after: Array) -> Array:
    """Distance of elements that changed to a neighbour, else 0."""
    if before.dtype.kind == "b":
        return np.asarray(before != after, np.float64)
    if before.dtype.kind in "iu":
        return np.asarray(np.where(before > after, before - after, after - before) == 1, np.float64)
    info = dtype_info(before.dtype.name)
    first, second = before.astype(np.float64), after.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(first - second)
        most = np.maximum(info.epsilon * np.maximum(np.abs(first), np.abs(second)), info.subnormal)
        return np.asarray(np.where(distance <= most, distance, 0.0))
