"""Shapes and dtypes of a reference's outputs, found by calling it.

A reference is not called with large tensors: lengths are replaced by small primes, twice with different
ones, and each output length is translated back. If the two calls disagree, or a length is none of the inputs',
the reference is called at full size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.op import Array, Shape

DIRECT = 1 << 16
"""Elements of all inputs up to which the reference is simply called."""
KEPT = 16
"""Lengths up to this are not replaced: they may be kernel sizes, numbers of heads, components."""
PRIMES = ((17, 19, 23, 29, 31, 37, 41, 43), (47, 53, 59, 61, 67, 71, 73, 79))
"""Two sets of replacement lengths."""
Returned = Mapping[str, Array]
Call = Callable[[Mapping[str, Array]], Returned]


class Traced(NamedTuple):
    """Shape and NumPy kind of one output: `f`, `c`, `i`, `u` or `b`; dtype is its name."""

    shape: Shape
    kind: str
    dtype: str


def trace(call: Call, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> dict[str, Traced]:
    """Outputs of `call`, a reference that takes inputs by name, for inputs of these shapes and dtypes."""
    if sum(prod(shape) for shape in shapes.values()) <= DIRECT:
        return _call(call, shapes, dtypes)
    found = _trace_small(call, shapes, dtypes)
    return _call(call, shapes, dtypes) if found is None else found


def _trace_small(call: Call, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> dict[str, Traced] | None:
    lengths = sorted({length for shape in shapes.values() for length in shape if length > KEPT})
    if len(lengths) > len(PRIMES[0]):
        return None
    seen = []
    for primes in PRIMES:
        small = dict(zip(lengths, primes, strict=False))
        replaced = {name: tuple(small.get(length, length) for length in shape) for name, shape in shapes.items()}
        try:
            outputs = _call(call, replaced, dtypes)
        except Exception:  # noqa: BLE001  the reference may require the real lengths
            return None
        seen.append(_restored(outputs, {value: length for length, value in small.items()}))
    first, second = seen
    return first if first == second and first is not None else None


def _restored(outputs: Mapping[str, Traced], lengths: Mapping[int, int]) -> dict[str, Traced] | None:
    found = {}
    for name, output in outputs.items():
        if any(length > KEPT and length not in lengths for length in output.shape):
            return None
        found[name] = output._replace(shape=tuple(lengths.get(length, length) for length in output.shape))
    return found


def _call(call: Call, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> dict[str, Traced]:
    rng = np.random.Generator(np.random.PCG64(0))
    with np.errstate(all="ignore"):
        outputs = call({name: _sample(rng, shape, dtypes[name]) for name, shape in shapes.items()})
    return {name: Traced(np.shape(value), value.dtype.kind, value.dtype.name) for name, value in outputs.items()}


def _sample(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Numbers between a half and one and a half; zeros for exact dtypes, which are valid indices."""
    info = dtype_info(dtype)
    if info.kind in ("int", "uint", "bool"):
        return np.zeros(shape, info.numpy)
    numbers: Any = rng.uniform(0.5, 1.5, shape)
    return np.asarray(numbers, np.complex128 if info.kind == "complex" else np.float64)
