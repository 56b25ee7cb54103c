"""Fresh values of inputs: known numbers in another order, or times random factors."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from opgauge.harness.worker.bits import module_of
from opgauge.ops import dtype_info
from opgauge.ops._core.op import Array

HALF_BYTES, VALUES = 2, 1 << 16
"""Bytes of 16-bit floats, and number of their values."""
LOWEST, HIGHEST = 0.3, 0.9
"""Range of the factors of fresh values: no sign changes, nothing overflows, and distributions stay valid."""
BLOCKS = 4
"""Contiguous blocks of an input that get a factor of their own, or cuts between reversed parts."""

SCATTERED = 64
"""Elements per pair of scattered ones, each of which gets another factor, or is exchanged with its mirror image."""
GAPS = 4096
"""Random distances between scattered elements, which repeat in larger arrays."""

LEAST_STRIPED = 1 << 15
"""Elements from which errors of a sample may be within the bounds of a sum."""
PERIODS = (2, 2, 3, 5, 7)
"""Numbers of stripes in a group, one after the other by part: samples at even distances save most."""
STRIPED_PARTS = 16
"""Parts of an array with stripes of their own; those of every other one are single elements."""
WORD = 8
"""Bytes of the largest integer."""


def renew(arrays: Iterable[Any], rng: np.random.Generator, *, is_scaled: bool) -> None:
    """Write fresh values into arrays: floating-point numbers times random factors, or known ones in another order.

    Both are needed. A kernel whose time depends on its values, such as a search that ends at the first number above a
    threshold, takes as long as before only on numbers of the same distribution. A sum over all of them would stay the
    same, so that some numbers take the places of others. Nor do samples at regular distances have the distribution of
    the rest: a sample of a large input would give its mean within the bounds.
    """
    for array in arrays:
        if array.size:
            (_scale_blocks if is_scaled and _is_floating(array) else _reorder)(array, rng)
            _scatter(array, rng)
            if array.size >= LEAST_STRIPED:
                _stripe(array, rng)


def renewed(values: Array, rng: np.random.Generator) -> Array:
    """A copy whose floating-point blocks have random factors; integers and bool are in another order."""
    found = np.array(values, order="C")
    if found.size:
        (_scale_blocks if _is_floating(found) else _reorder)(found, rng)
    return found


def toss(rng: np.random.Generator) -> bool:
    """True in half of the cases."""
    return bool(rng.random() < 1 / 2)


def _is_floating(array: Any) -> bool:
    return dtype_info(array.dtype.name).kind in ("float", "complex")


def _reorder(array: Any, rng: np.random.Generator) -> None:
    """Reverse parts of an array, and overwrite a quarter of it by others of its numbers.

    All stay valid, such as indices: inputs whose numbers depend on each other are derived.
    """
    _reverse_parts(array, rng)
    flat = _flat(array)
    length = -(-flat.size // 4)
    here, there = (int(one) for one in rng.integers(0, flat.size - length + 1, 2))
    flat[here : here + length] = flat[there : there + length].copy()


def _reverse_parts(array: Any, rng: np.random.Generator) -> None:
    """Reverse each part of an array, cut at random; with a single cut, changes would often repeat others."""
    flat, cuts = _flat(array), sorted(int(one) for one in rng.integers(0, array.size, BLOCKS))
    for start, end in pairwise((0, *cuts, array.size)):
        flat[start:end] = flat[start:end][::-1].copy()


def _scale_blocks(array: Any, rng: np.random.Generator) -> None:
    """Multiply all of an array by a random factor, and some contiguous blocks by another."""
    factors = rng.uniform(LOWEST, HIGHEST, BLOCKS + 1)
    flat = _flat(array)
    scale_floats(flat, factors[0])
    for factor in factors[1:]:
        first, last = sorted(int(one) for one in rng.integers(0, array.size + 1, 2))
        scale_floats(flat[first:last], factor)


def _scatter(array: Any, rng: np.random.Generator) -> None:
    """Change elements at random places, so that no sum of the new values follows from those of a few known parts."""
    flat = _flat(array)
    # as integers, of which any library takes some by their indices
    words = flat.view(f"u{flat.itemsize}") if flat.dtype.kind == "V" else flat
    half, library = -(-flat.size // 2), module_of(flat)
    places = np.cumsum(rng.integers(1, SCATTERED, min(GAPS, 1 + flat.size // SCATTERED)))
    again = -(-half // int(places[-1]))  # made where the array is: of gigabytes, they would take long to copy
    here = (library.arange(again)[:, None] * int(places[-1]) + library.asarray(places - 1)).reshape(-1) % half
    there = flat.size - 1 - here
    first, last = words[here], words[there]
    if _is_floating(array):
        first = (first.view(flat.dtype) * flat.dtype.type(rng.uniform(LOWEST, HIGHEST))).view(words.dtype)
    words[here], words[there] = last, first


def _stripe(array: Any, rng: np.random.Generator) -> None:
    """Exchange elements of neighbouring stripes, such that the larger ones are in the last stripe, or the first.

    Numbers are compared as integers: larger ones are positive, and farther from zero than others of their sign.
    """
    flat = _flat(array)
    if flat.itemsize > WORD:
        return
    words, library = flat.view(f"i{flat.itemsize}"), module_of(flat)
    size, is_rising, first = flat.size // STRIPED_PARTS, toss(rng), int(rng.integers(len(PERIODS)))
    for part in range(STRIPED_PARTS):
        period = PERIODS[(first + part // 2) % len(PERIODS)]
        width = 1 if part % 2 else 1 << int(rng.integers((size // period).bit_length()))
        groups = size // (period * width)
        stripes = words[part * size :][: groups * period * width].reshape(groups, period, width)
        for pair in pairwise(range(period)[:: 1 if is_rising else -1]):
            one, other = (stripes[:, number] for number in pair)
            larger = library.maximum(one, other)
            one[...] = library.minimum(one, other)
            other[...] = larger


def _flat(array: Any) -> Any:
    """A flat view of an input, whose memory is contiguous in some order of its axes."""
    return (array if array.flags.c_contiguous else array.T).reshape(-1)


def scale_floats(flat: Any, factor: float) -> None:
    """Multiply a flat array in place.

    NumPy converts 16-bit floats one by one: for many of them, a table of all products takes a tenth of the time.
    """
    number = flat.dtype.type(factor)
    if not isinstance(flat, np.ndarray) or flat.dtype.itemsize != HALF_BYTES or flat.size <= VALUES:
        flat *= number
        return
    every, bits = np.arange(VALUES, dtype=np.uint16), flat.view(np.uint16)
    with np.errstate(all="ignore"):
        table = (every.view(flat.dtype) * number).view(np.uint16)
    bits[...] = table[bits]
