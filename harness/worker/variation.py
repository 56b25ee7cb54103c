"""Variation of a case's inputs that changes the outputs in a known way, found by probing its reference.

Exchange: the case has independent slices (rows of a norm, samples of a batch, output channels of a filter): slice i of
the outputs depends on slice i of the inputs alone. Exchanging slices of the inputs exchanges slices of the outputs, and
a few slices have a reference of their own at a fraction of the cost; so small slices are preferred to large ones.
Scaling: inputs times -1 or 2 give outputs times a known number: a mean over everything, gradients.

The probe is the op's float64 reference on a small case of the same ranks, so no op has to declare anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from time import monotonic
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import make_inputs, widen
from opgauge.harness.worker.verify import Expected
from opgauge.ops import OpError, TensorSpec, find_op
from opgauge.ops._core.op import Array

SMALL_SIZE = 6
"""Largest size that stays unchanged in the small case: kernel sizes, groups, broadcast axes."""
DIVISIBLE = 8
"""Divisor that is preserved in the second small case: groups of channels."""
MOST_CANDIDATES = 64
"""Most candidates that are tried."""
MOST_PROBED = 1 << 15
"""Most elements of a tensor of the small case."""
LARGE_SLICE = 1 << 16
"""Elements of a slice, inputs and outputs together, above which an axis with more slices is looked for."""
MOST_S = 0.5
"""Seconds of probing, after which no further candidate is tried."""
TOLERANCE = 1e-9
"""Relative difference within which float64 outputs are equal."""
MOST_LEFT = 1e-3
"""Largest share of an output that is left of it if all floats are zero, where few elements may decide."""
FACTORS = (-1, 2)
"""Factors of inputs that are tried."""
POWERS = (1, 2, 3, 4, -1, -2, -3, -4)
"""Powers of the factor by which outputs may change."""
_Compute = Callable[[Mapping[str, Array]], dict[str, Array]]
_REFUSALS = (OpError, ValueError, ArithmeticError, LookupError)


@dataclass(frozen=True)
class Exchange:
    """Axis of each tensor whose slices are independent.

    inputs: by name; an input that is missing is read by all slices. outputs: all of them. size: number of slices.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    size: int


@dataclass(frozen=True)
class Scaling:
    """Inputs that `factor` multiplies, and the resulting factor of each output."""

    inputs: tuple[str, ...]
    factor: int
    outputs: Mapping[str, float]


Variation = Exchange | Scaling
_FOUND: dict[str, Variation | None] = {}
_VANISHING: dict[str, bool] = {}


def find_variation(case: Case) -> Variation | None:
    """A way to vary the inputs of a case, probed once per process; None if there is none."""
    if case.id not in _FOUND:
        _FOUND[case.id] = _find(case)
    return _FOUND[case.id]


def vanishes_at_zero(case: Case) -> bool:
    """Whether outputs are zero where all floats are, so that a few large elements decide; probed once per process.

    Otherwise all elements add to sums of, say, exponentials: as much each, so that errors of rounding do not cancel.
    """
    if case.id not in _VANISHING:
        _VANISHING[case.id] = _vanishes(case)
    return _VANISHING[case.id]


def _vanishes(case: Case) -> bool:
    for small in _small_cases(case):
        try:
            values = {name: widen(value) for name, value in make_inputs(small).values.items()}
            compute = _reference(small)
            usual = compute(values)
            left = compute({name: value * 0 if value.dtype.kind in "fc" else value for name, value in values.items()})
        except _REFUSALS:
            continue
        return not any(_mean_size(left[name]) > MOST_LEFT * _mean_size(value) for name, value in usual.items())
    return True


def _mean_size(values: Array) -> float:
    """Mean magnitude of floats, NaN if one of them is; 0 of other dtypes."""
    return float(np.abs(values).mean()) if values.dtype.kind in "fc" and values.size else 0.0


def slice_elements(case: Case, axes: Exchange) -> int:
    """Elements of one slice, inputs and outputs together."""
    specs = {**case.resolved.inputs, **case.resolved.outputs}
    return sum(specs[name].size for name in {**axes.inputs, **axes.outputs}) // axes.size


def take(arrays: Mapping[str, Any], axes: Mapping[str, int], chosen: Any) -> dict[str, Any]:
    """Chosen slices of each array that has an axis; the others whole."""
    return {name: array[along(axes[name], chosen)] if name in axes else array for name, array in arrays.items()}


def along(axis: int, chosen: Any) -> tuple[Any, ...]:
    """An index that selects `chosen` along an axis."""
    return (*[slice(None)] * axis, chosen)


def expect_slices(case: Case, axes: Exchange, values: Mapping[str, Array], chosen: Sequence[int]) -> Expected | None:
    """Reference and bounds of chosen slices, given the present values of all inputs.

    None if the op refuses this number of slices, such as a batch that its step does not divide.
    """
    op = find_op(case.op)
    part = {
        name: widen(np.asarray(value, order="C")) for name, value in take(values, axes.inputs, list(chosen)).items()
    }
    specs = {
        name: replace(spec, shape=_with(spec.shape, axes.outputs[name], len(chosen)), view_of=None)
        for name, spec in case.resolved.outputs.items()
    }
    with np.errstate(all="ignore"):
        try:
            found = op.expected(part, case.params)
            bounds = op.bound(part, found, case.params, case.dtype)
        except _REFUSALS:
            return None
    return Expected(specs, found, bounds)


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _find(case: Case) -> Variation | None:
    end = monotonic() + MOST_S
    for small in _small_cases(case):
        try:
            values = {name: widen(value) for name, value in make_inputs(small).values.items()}
            compute = _reference(small)
            whole = compute(values)
        except _REFUSALS:
            continue
        resolved, best = case.resolved, None
        for found in islice(_candidates(resolved.inputs, resolved.outputs), MOST_CANDIDATES):
            if monotonic() > end:
                return best
            if best and not (found.size > best.size and found.inputs.keys() >= best.inputs.keys()):
                continue
            if _is_independent(found, values, whole, compute):
                best = found
                if slice_elements(case, found) <= LARGE_SLICE:
                    return found
        if best is not None:
            return best
        scaling = _find_scaling(case, values, whole, compute)
        if scaling is not None:
            return scaling
    return None


def _find_scaling(
    case: Case, values: Mapping[str, Array], whole: Mapping[str, Array], compute: _Compute
) -> Scaling | None:
    """One input, or all of them, times -1 or 2, if that multiplies each output by a power of it."""
    numbers = [name for name, value in values.items() if value.dtype.kind in "fci"]
    for chosen, factor in product([*([name] for name in numbers), numbers], FACTORS):
        try:
            found = compute({name: value * factor if name in chosen else value for name, value in values.items()})
        except _REFUSALS:
            continue
        powers = {name: _power(found[name], array, factor) for name, array in whole.items()}
        if powers and None not in powers.values() and chosen and case.resolved.outputs:
            return Scaling(tuple(chosen), factor, {name: float(power or 0) for name, power in powers.items()})
    return None


def _power(found: Array, before: Array, factor: int) -> float | None:
    """The power of `factor` by which an output was multiplied; None if it was not, or did not change."""
    if found.dtype.kind == "b" or not found.size:
        return None
    tried = (float(factor) ** power for power in POWERS)
    return next((one for one in tried if one != 1 and _close(found, before * one) and not _close(found, before)), None)


def _small_cases(case: Case) -> Iterator[Case]:
    """A case of the same ranks whose large sizes are small and differ from each other; then the case itself.

    A size that the shape rule ties to others (channels to groups, taps to a kernel) is unchanged.
    """
    sizes = sorted({size for shape in case.shapes.values() for size in shape if size > SMALL_SIZE}, reverse=True)
    small = replace(case, inputs={})
    for rank, size in enumerate(sizes):
        for smaller in (SMALL_SIZE + 1 + rank, DIVISIBLE * (2 + rank)):
            shapes = {name: tuple(smaller if one == size else one for one in at) for name, at in small.shapes.items()}
            tried = replace(small, shapes=shapes)
            if smaller < size and _largest(tried) is not None:
                small = tried
                break
    for found in (small, replace(case, inputs={})):
        if 0 < (_largest(found) or 0) <= MOST_PROBED:
            yield found


def _largest(case: Case) -> int | None:
    """Elements of the largest tensor, 0 if one is empty; None if the shape rule refuses the case."""
    try:
        sizes = [spec.size for spec in [*case.resolved.inputs.values(), *case.resolved.outputs.values()]]
    except OpError:
        return None
    return max(sizes, default=0) if all(sizes) else 0


def _reference(case: Case) -> _Compute:
    op = find_op(case.op)

    def compute(values: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return op.expected(values, case.params)

    return compute


def _candidates(inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> Iterator[Exchange]:
    """Assignments of one axis to every output, and of one axis or none to every input, all of one size."""
    if not outputs:
        return
    sizes = dict.fromkeys(size for spec in outputs.values() for size in spec.shape if size > 1)
    for size in sizes:
        of_outputs = [_axes(spec, size) for spec in outputs.values()]
        of_inputs = [[*_axes(spec, size), None] for spec in inputs.values()]
        for chosen in product(*of_outputs):
            # an axis of the same position first: it is nearly always that one
            ordered = [sorted(axes, key=lambda axis: (axis is None, axis != chosen[0])) for axes in of_inputs]
            for given in product(*ordered):
                sliced = {name: axis for name, axis in zip(inputs, given, strict=True) if axis is not None}
                if sliced:
                    yield Exchange(sliced, dict(zip(outputs, chosen, strict=True)), size)


def _axes(spec: TensorSpec, size: int) -> list[int]:
    return [axis for axis, found in enumerate(spec.shape) if found == size]


def _is_independent(
    axes: Exchange,
    values: Mapping[str, Array],
    whole: Mapping[str, Array],
    compute: _Compute,
) -> bool:
    """Whether reordered slices give the same slices of the outputs, which differ from each other."""
    sizes = {values[name].shape[axis] for name, axis in axes.inputs.items()}
    sizes |= {whole[name].shape[axis] for name, axis in axes.outputs.items()}
    if len(sizes) != 1:
        return False
    (size,) = sizes
    for chosen in ([size - 1, 0], [*range(size)][::-1]):
        try:
            found = compute(take(values, axes.inputs, chosen))
        except _REFUSALS:
            return False
        wanted = take(whole, axes.outputs, chosen)
        for name, array in wanted.items():
            if found[name].shape != array.shape or not _close(found[name], array):
                return False
    return True


def _close(first: Array, second: Array) -> bool:
    if first.dtype.kind in "fc":
        return bool(np.allclose(first, second, rtol=TOLERANCE, atol=0.0, equal_nan=True))
    return bool(np.array_equal(first, second))
