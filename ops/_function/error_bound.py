"""Largest error of a correct kernel, derived from the reference itself.

Two effects are allowed. The output is rounded, perhaps twice. And sums round internally, which changes the
result about as much as rounding the inputs would: the reference is called on inputs that are perturbed by one
rounding, independently and all alike. The second effect counts in the precision that kernels accumulate in, times the
square root of the number of terms, as for a sum in sequence.

Outputs that are computed element by element sum nothing, however long their axes are. One more call of the reference
detects them: it changes half of the indices of each axis, and no other element of the output may change.

A few draws underestimate the effect on some elements by chance. Each element therefore gets at least half the root
mean square of the effect along its row, the last axis of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf, prod, sqrt
from numbers import Real
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS_8, dtype_info
from opgauge.ops._core.errors import DefinitionError
from opgauge.ops._core.op import Array

DRAWS = 4
"""Independent perturbations, besides one that changes all inputs alike."""
LARGE, DRAWS_OF_LARGE = 1 << 22, 2
"""Elements of all inputs from which fewer perturbations are drawn: each costs one call of the reference."""
ROUNDINGS = 2.0
"""Roundings to the case's dtype that a kernel may make between its inputs and its output."""
ELEMENTWISE_ROUNDINGS = 24.0
"""Most roundings of an element that is computed alone: torch's `gelu` by a polynomial, on the CPU, needs 20."""
NOTICED, SHIFT = 1e-12, 0.25
"""Relative change of an output that counts as one, and relative change of inputs that causes it."""
LEAST_CHANGED = 0.125
"""Share of the affected elements that has to change: else the reference does not show what they depend on."""
Call = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Tolerance = float | tuple[float, float] | Mapping[str, float | tuple[float, float]]


def perturbation_bound(
    call: Call, inputs: Mapping[str, Array], outputs: Mapping[str, Array], dtype: str
) -> dict[str, Array | float]:
    """Allowed absolute error per output, from perturbed inputs; 0 for exact outputs."""
    floating = {name: value for name, value in inputs.items() if value.dtype.kind in "fc"}
    info = dtype_info(dtype if dtype not in FLOATS_8 else "float16")  # tensor cores sum products of 8 bits so exactly
    if info.epsilon == 0 or not floating or not any(value.dtype.kind in "fc" for value in outputs.values()):
        return dict.fromkeys(outputs, 0.0)
    effect = _effect(call, inputs, floating, outputs, info.epsilon)
    ratio = dtype_info(info.accumulate).epsilon / info.epsilon
    summed = {
        name: sqrt(_terms(floating.values(), value)) for name, value in outputs.items() if value.dtype.kind in "fc"
    }
    if ratio * max(summed.values(), default=0.0) > ELEMENTWISE_ROUNDINGS:
        alone = _elementwise(call, inputs, floating, outputs)
        inside = _inner_rounding(call, inputs, outputs, alone)
        for name in alone:
            summed[name] = min(summed[name], ELEMENTWISE_ROUNDINGS)
            effect[name] = np.maximum(effect[name], info.epsilon * inside.get(name, 0.0))
    found: dict[str, Array | float] = {}
    for name, value in outputs.items():
        if name not in summed:
            found[name] = 0.0
            continue
        growth = ROUNDINGS + ratio * (1 + summed[name])
        with np.errstate(invalid="ignore"):
            rounding = np.nan_to_num(info.epsilon * np.abs(value), posinf=0.0)
        found[name] = growth * (rounding + effect[name])
    return found


def check_tolerance(tolerance: Tolerance, dtypes: Iterable[str], op: str) -> None:
    """Raise DefinitionError for what is no error, and where a mapping lacks one of an op's dtypes."""
    by_dtype = tolerance if isinstance(tolerance, Mapping) else dict.fromkeys(dtypes, tolerance)
    missing = [name for name in dtypes if name not in by_dtype]
    if missing:
        msg = f"op {op}: tolerance= has no entry for {', '.join(missing)}, only for {', '.join(by_dtype)}"
        raise DefinitionError(msg)
    for one in by_dtype.values():
        numbers = one if isinstance(one, tuple) and len(one) == 2 else (one,)
        if not all(isinstance(number, Real) and 0 <= number < inf for number in numbers):
            msg = f"op {op}: tolerance= takes a relative error, (relative, absolute), or either by dtype, not {one!r}"
            raise DefinitionError(msg)


def stated_bound(tolerance: Tolerance, outputs: Mapping[str, Array], dtype: str) -> dict[str, Array | float]:
    """Allowed absolute error per output by a stated tolerance.

    tolerance: relative, with a tenth of the output's root mean square as its least size; or (relative, absolute); or
    either of them by dtype.
    """
    if isinstance(tolerance, Mapping):
        tolerance = tolerance[dtype]
    found: dict[str, Array | float] = {}
    for name, value in outputs.items():
        if value.dtype.kind not in "fc":
            found[name] = 0.0
            continue
        size = np.nan_to_num(np.abs(value), posinf=0.0)
        if isinstance(tolerance, tuple):
            relative, absolute = tolerance
            found[name] = relative * size + absolute
        else:
            least = 0.1 * float(np.sqrt(np.mean(size**2))) if size.size else 0.0
            found[name] = tolerance * np.maximum(size, least)
    return found


def _effect(
    call: Call,
    inputs: Mapping[str, Array],
    floating: Mapping[str, Array],
    outputs: Mapping[str, Array],
    epsilon: float,
) -> dict[str, Array]:
    """Largest change of each output under perturbations of one rounding."""
    draws = DRAWS if sum(value.size for value in floating.values()) < LARGE else DRAWS_OF_LARGE
    rng = np.random.Generator(np.random.PCG64(0))
    largest = {name: np.zeros(value.shape) for name, value in outputs.items()}
    for draw in range(draws + 1):
        changed = {**inputs}
        for name, value in floating.items():
            changed[name] = value * (_factors(rng, epsilon, value.shape) if draw else 1 + epsilon)
        for name, value in call(changed).items():
            if value.dtype.kind in "fc":
                with np.errstate(invalid="ignore"):
                    change = np.asarray(np.abs(value - outputs[name]))
                # neither NaN nor infinity is a change: fmax leaves the number where the other is NaN
                change[np.isinf(change)] = 0.0
                np.fmax(largest[name], change, out=largest[name])
    return {name: _smoothed(value) for name, value in largest.items()}


def _elementwise(
    call: Call, inputs: Mapping[str, Array], floating: Mapping[str, Array], outputs: Mapping[str, Array]
) -> set[str]:
    """Outputs whose elements depend on the inputs' elements of the same index alone, by one call of the reference.

    The inputs have to broadcast to the output's shape. Sums of integers are not looked for: integer inputs of more
    than one element rule it out.
    """
    if any(value.dtype.kind in "iu" and value.size > 1 for value in inputs.values()):
        return set()
    try:
        shape = np.broadcast_shapes(*(value.shape for value in floating.values()))
    except ValueError:
        return set()
    names = [name for name, value in outputs.items() if value.dtype.kind in "fc" and value.shape == shape]
    if not names:
        return set()
    changed, affected = _half_changed(floating, shape)
    again = _called(call, {**inputs, **changed})
    return {name for name in names if name in again and _only_there(again[name], outputs[name], affected)}


def _half_changed(floating: Mapping[str, Array], shape: tuple[int, ...]) -> tuple[dict[str, Array], Array]:
    """Inputs changed at half of the indices of each axis, and the elements of an output of `shape` at these indices."""
    rng = np.random.Generator(np.random.PCG64(1))
    halves = [_half(rng, length) for length in shape]
    changed, affected = {}, np.zeros(shape, np.bool_)
    for number, (name, value) in enumerate(floating.items(), 1):
        if value.size > 1:
            chosen = _chosen(halves, value.shape)
            affected |= chosen
            # another factor for each input: a quotient changes too
            changed[name] = np.multiply(value, 1 - SHIFT / number, where=chosen, out=value.copy())
    return changed, affected


def _only_there(changed: Array, value: Array, affected: Array) -> bool:
    """Whether enough of the affected elements differ, and by more than the rounding of float64 no other; NaN is NaN."""
    if changed.shape != value.shape:
        return False
    differs = changed != value
    elsewhere = differs & ~affected
    before, after = value[elsewhere], changed[elsewhere]
    with np.errstate(invalid="ignore", over="ignore"):
        near = (np.abs(after - before) <= NOTICED * np.abs(before)) | (np.isnan(after) & np.isnan(before))
    return bool(np.all(near) and np.count_nonzero(differs) > LEAST_CHANGED * np.count_nonzero(affected))


def _inner_rounding(
    call: Call, inputs: Mapping[str, Array], outputs: Mapping[str, Array], names: set[str]
) -> dict[str, Array]:
    """Error of the reference itself in float32, in its epsilons: values in between may be larger than the output."""
    narrow = {"f": np.float32, "c": np.complex64}
    narrowed = {name: one.astype(narrow.get(one.dtype.kind, one.dtype)) for name, one in inputs.items()}
    found = _called(call, narrowed) if names else {}
    with np.errstate(invalid="ignore", over="ignore"):
        errors = {
            name: np.abs(found[name] - outputs[name]) / dtype_info("float32").epsilon for name in names & found.keys()
        }
    return {name: _smoothed(np.nan_to_num(error, posinf=0.0)) for name, error in errors.items()}


def _called(call: Call, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Outputs of the reference; none where it refuses these values or dtypes."""
    with suppress(Exception):  # a user's function may raise any
        return call(inputs)
    return {}


def _half(rng: np.random.Generator, length: int) -> Array:
    """A random half of an axis as a mask; the whole of an axis of one element."""
    mask = np.zeros(length, np.bool_)
    mask[rng.permutation(length)[: (length + 1) // 2]] = True
    return mask


def _chosen(halves: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Elements of an input whose indices are in the halves of the axes that it does not broadcast."""
    mask = np.ones(shape, np.bool_)
    for axis in range(1, len(shape) + 1):
        if shape[-axis] > 1:
            mask &= halves[-axis].reshape(-1, *[1] * (axis - 1))
    return mask


def _factors(rng: np.random.Generator, epsilon: float, shape: tuple[int, ...]) -> Array:
    """1 plus or minus 0.5 to 1.5 epsilon, of random sign; in place, as these are large arrays."""
    found = rng.random(shape)
    found -= 0.5
    found += np.copysign(0.25, found)
    found *= 2 * epsilon
    found += 1
    return found


def _smoothed(effect: Array) -> Array:
    """The effect, raised to half of its root mean square along the last axis."""
    if effect.ndim == 0 or effect.size == 0:
        return effect
    along_row: Array = np.sqrt(np.mean(effect**2, -1, keepdims=True))
    return np.asarray(np.maximum(effect, along_row / 2))


def _terms(inputs: Sequence[Array] | Any, output: Array) -> float:
    """Numbers that one output element may sum: the longest axis, or all axes that the output lacks."""
    arrays = list(inputs)
    longest = max((length for value in arrays for length in value.shape), default=1)
    reduced = sum(value.size for value in arrays) / max(prod(output.shape), 1)
    return float(max(longest, reduced, 1.0))
