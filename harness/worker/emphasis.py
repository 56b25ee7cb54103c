"""Inputs in which few elements dominate: they reveal kernels that drop elements or round them too coarsely.

The bound of a long sum is wider than one element, so that a dropped tail or inputs rounded to 16 bits pass on inputs of
even size. If all elements but a few are made small, the bound shrinks with them and those few decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import with_derived
from opgauge.harness.worker.variation import LARGE_SLICE, Exchange, along, slice_elements
from opgauge.harness.worker.verify import Expected
from opgauge.ops import dtype_info
from opgauge.ops._core.backend import cupy
from opgauge.ops._core.op import Array

BLOCK = 32
"""Elements per slice that keep their size."""
SHRINK = {"float16": 2.0**-5, "bfloat16": 2.0**-40, "float32": 2.0**-40, "float64": 2.0**-30}
"""Factor of the other elements, by dtype: none becomes subnormal, nor do products of three.

Those of 8 bits have too few exponents.
"""
LOST = {"bfloat16": 2.0**-18, "float32": 2.0**-18}
"""Share of the largest output of a slice that the small elements may add to any of its outputs, by dtype.

An honest sum in sequence may begin with the large elements, and then loses each that is smaller than a rounding of
theirs. Millions of them do not sum to this share, which is less than an error of inputs that are rounded to TF32.
Without it, outputs whose few large elements have small factors would be called wrong.
"""
LOW_BITS: dict[str, tuple[type[np.unsignedinteger], int, int]] = {
    "float32": (np.uint32, 16, 0x2400),
    "float64": (np.uint64, 45, (1 << 42) | (1 << 39) | (1 << 26)),
}
"""Low bits of the large elements, by dtype: an integer type of its size, their number, and their values.

Those of bfloat16, float16, TF32 and float32 are an eighth of a unit, seven eighths in the complement. Rounded so,
magnitudes become smaller by an eighth in some blocks, and numbers larger in others: errors of a norm or a sum add up.
"""
OPPOSITE = -15 / 16
"""Ratio of the second half of a block to its first half.

The mean of a slice is then small too: a variance would sum its square in place of each small element, and lose that.
"""
SLICES = 4
"""Changed slices; one of cases whose slices are large, since each needs a reference.

The large elements are the last ones of one slice, the first ones of one, and elsewhere in the others; a single slice
has three blocks of them.
"""


def choose_slices(case: Case, axes: Exchange, rng: np.random.Generator) -> list[int]:
    """Slices to change: the first, the last and others, or one of these."""
    found = sorted({axes.size - 1, 0, *(int(one) for one in rng.integers(0, axes.size, SLICES - 2))})
    return [int(rng.choice(found))] if slice_elements(case, axes) > LARGE_SLICE else found


def emphasize(
    case: Case,
    values: Mapping[str, Array],
    axes: Mapping[str, int],
    rng: np.random.Generator,
) -> dict[str, Array]:
    """New values of the inputs that have an axis in `axes`, whose slices along it are all changed.

    values: slices of the inputs, on the host. Raises the errors of deriving inputs.
    """
    found = dict(values)
    for name, axis in axes.items():
        moved = np.moveaxis(values[name], axis, 0)
        rows = _emphasized_rows(moved.reshape(len(moved), -1), rng)
        found[name] = np.ascontiguousarray(np.moveaxis(rows.reshape(moved.shape), 0, axis))
    return dict(with_derived(case, found, axes).values)


def _emphasized(row: Array, kinds: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A row of which only blocks keep their size; the halves of each nearly cancel, unless all elements have one sign.

    kinds: 0 for a block at the end, 1 at the start, 2 elsewhere.
    """
    length = min(BLOCK, row.size)
    last, half = row.size - length, length // 2
    factor = row.dtype.type
    shrunk: Array = row * factor(SHRINK.get(row.dtype.name, 1))
    for kind in kinds:
        start = (last, 0, int(rng.integers(0, last + 1)))[kind]
        block = row[start : start + length].copy()
        if row.min() < 0 < row.max():
            block[half : 2 * half] = block[:half] * factor(OPPOSITE)
        _set_low_bits(block, by_sign=(kind + len(kinds)) % 2 == 0)
        shrunk[start : start + length] = block
    return shrunk


def _set_low_bits(values: Array, *, by_sign: bool) -> None:
    """Let rounding to fewer bits bring all elements towards zero, or all upwards; zeros stay."""
    if values.dtype.name not in LOW_BITS:
        return
    integer, count, low = LOW_BITS[values.dtype.name]
    mask, bits = integer((1 << count) - 1), values.view(integer)
    chosen = np.where((values > 0) & by_sign, integer(low) ^ mask, integer(low))
    bits[...] = np.where(values == 0, bits, (bits & ~mask) | chosen)


def allow_lost(expected: Expected, dtype: str, axes: Mapping[str, int] | None = None) -> Expected:
    """Expected outputs of emphasized inputs, with bounds that allow losing the small elements (`LOST`).

    axes: of the slices, by output; None: each output is one slice.
    """
    if dtype not in LOST:
        return expected
    bounds = dict(expected.bounds)
    for name, value in expected.values.items():
        if value.dtype.kind != "f":
            continue
        within = tuple(axis for axis in range(value.ndim) if axes is None or axis != axes[name])
        sizes = np.abs(np.where(np.isfinite(value), value, 0))
        bound = np.asarray(bounds.get(name, 0.0))
        # a negative bound has a meaning of its own
        bounds[name] = bound + np.copysign(LOST[dtype] * sizes.max(axis=within, keepdims=True, initial=0), bound)
    return replace(expected, bounds=bounds)


def emphasize_all(case: Case, values: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """New values of all inputs of a case without independent slices: each is one slice."""
    rows = {name: value.reshape(1, -1) for name, value in values.items()}
    changed = {name: _emphasized_rows(row, rng).reshape(values[name].shape) for name, row in rows.items()}
    return dict(with_derived(case, changed).values)


def write_inputs(
    arrays: Mapping[str, Any], axes: Exchange | None, chosen: list[int], values: Mapping[str, Any]
) -> None:
    """Write values into chosen slices of the inputs, or into all of them."""
    for name, value in values.items():
        if axes is None or name in axes.inputs:
            here = arrays[name]
            place = ... if axes is None else along(axes.inputs[name], chosen)
            here[place] = value if isinstance(here, np.ndarray) else cupy().asarray(value)


def _emphasized_rows(rows: Array, rng: np.random.Generator) -> Array:
    """Rows of which only blocks keep their size; rows of other than floating-point dtypes unchanged."""
    if dtype_info(rows.dtype.name).kind != "float" or not rows.size:
        return rows
    kinds = [(number % 3,) for number in range(len(rows))] if len(rows) > 1 else [(0, 1, 2)]
    return np.stack([_emphasized(row, kind, rng) for row, kind in zip(rows, kinds, strict=True)])
