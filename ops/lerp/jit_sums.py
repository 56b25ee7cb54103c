"""Numba kernels of lerp_grad for the CPU for summed gradients and broadcast weights.

Tensors are flat. dout's axes, merged where the gradient and the weight allow it, are the innermost one, a line, and
outer ones that the gradient retains or is summed over, given as arrays of lengths and of strides in weight and dout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.jit_axes import layout_of, offsets_at, positions
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Type of indices known to be non-negative: loops over them vectorise."""
SUMS = {"reassoc", "contract", "nsz"}
"""Reordering that sums within a line allow the compiler."""
TILE = 2048
"""Results of a line accumulated at a time: in float64 they fit into the first-level cache."""
SHORT = 16
"""Maximum line length for which loops without vectors are as fast."""
SHORT_SCALED, SHORT_16_BIT, COPIED = 128, 384, 512
"""Maximum line length for which several lines are scaled in one loop, in general and in 16 bits, where lines of 130 to
384 take 0.6 to 0.75 of the time; and elements of their copied weights."""
PIECE = 4096
"""Elements summed in the accumulating dtype before the sum is widened to float64."""


class Factor(NamedTuple):
    """Factor of dout in a gradient, offset + sign weight; for a scalar weight the sign is 0."""

    offset: Any
    sign: Any


@njit(**INNER)
def _factors_of(numbers: Any) -> Any:
    """Two factors from their offsets and signs, one after the other."""
    return Factor(numbers[0], numbers[1]), Factor(numbers[2], numbers[3])


@njit(**INNER)
def _scale_line(
    dout: Any, at: int, weight: Any, at_weight: int, dense: Any, factor: Any, out: Any, length: int
) -> None:
    """Set out[at:] to factor dout[at:], `length` elements."""
    first, share, size = uintp(at), uintp(at_weight), uintp(length)
    if weight.size and dense:
        for k in range(size):
            value = (factor.offset + factor.sign * widen(weight[share + k])) * widen(dout[first + k])
            out[first + k] = narrow(value, out[first + k])
    else:
        one = factor.offset + (factor.sign * widen(weight[share]) if weight.size else factor.sign * 0)
        for k in range(size):
            out[first + k] = narrow(one * widen(dout[first + k]), out[first + k])


@njit(**INNER)
def _add_line(
    dout: Any, at: int, weight: Any, at_weight: int, dense: Any, factor: Any, totals: Any, length: int
) -> None:
    """Add factor dout[at + k] to totals[k], in float64."""
    first, share, size = uintp(at), uintp(at_weight), uintp(length)
    if weight.size and dense:
        for k in range(size):
            part = factor.offset + factor.sign * widen(weight[share + k])
            totals[k] += np.float64(part) * np.float64(widen(dout[first + k]))
    else:
        one = np.float64(factor.offset + (factor.sign * widen(weight[share]) if weight.size else factor.sign * 0))
        for k in range(size):
            totals[k] += one * np.float64(widen(dout[first + k]))


@njit(fastmath=SUMS, **INNER)
def _sum_products(dout: Any, first: Any, weight: Any, share: Any, size: Any, factor: Any) -> Any:
    total = factor.sign * 0
    for k in range(size):
        total += (factor.offset + factor.sign * widen(weight[share + k])) * widen(dout[first + k])
    return total


@njit(fastmath=SUMS, **INNER)
def _sum_values(dout: Any, first: Any, size: Any, factor: Any) -> Any:
    total = type(factor)(0)
    for k in range(size):
        total += factor * widen(dout[first + k])
    return total


@njit(**INNER)
def _sum_line(dout: Any, at: int, weight: Any, at_weight: int, dense: Any, factor: Any, length: int) -> Any:
    """The sum of factor dout over a line, in float64; of products, as infinite ones of both signs are NaN."""
    total, share = 0.0, uintp(at_weight)
    one = factor.offset + factor.sign * (widen(weight[share]) if weight.size else factor.sign * 0)
    for start in range(0, length, PIECE):
        size = uintp(min(PIECE, length - start))
        if weight.size and dense:
            total += _sum_products(dout, uintp(at + start), weight, share + uintp(start), size, factor)
        else:
            total += _sum_values(dout, uintp(at + start), size, one)
    return total


@njit(inline="always", error_model="numpy")
def _sum_short_line(dout: Any, at: int, weight: Any, at_weight: int, line: Any, factor: Any) -> Any:
    """Sum a line in one loop, for lines shorter than vectors."""
    total = 0.0
    first, share, step = uintp(at), uintp(at_weight), uintp(1 if line.dense else 0)
    for k in range(uintp(line.length)):
        value = widen(dout[first + k])
        part = widen(weight[share + k * step]) if weight.size else factor.sign * 0
        total += np.float64((factor.offset + factor.sign * part) * value)
    return total


@njit(**INNER)
def _add_short_lines(
    dout: Any,
    at: int,
    weight: Any,
    at_weight: int,
    rows: int,
    summed: Any,
    line: Any,
    factor: Any,
    totals: Any,
) -> None:
    """Add rows of the innermost summed axis, shorter than vectors, to totals."""
    last, step = len(summed.lengths) - 1, uintp(1 if line.dense else 0)
    for row in range(rows):
        first, share = uintp(at + row * summed.dout[last]), uintp(at_weight + row * summed.weight[last])
        for k in range(uintp(line.length)):
            value = widen(dout[first + k])
            part = widen(weight[share + k * step]) if weight.size else factor.sign * 0
            totals[k] += np.float64(factor.offset + factor.sign * part) * np.float64(value)


@njit(**INNER)
def _add_parts(parts: Any, out: Any) -> None:
    """Set out to the sums over the splits. Serial, as a sum in a parallel function starts threads for each result."""
    for split in range(1, parts.shape[0]):
        for result in range(uintp(parts.shape[1])):
            parts[0, result] += parts[split, result]
    for result in range(uintp(parts.shape[1])):
        out[result] = narrow(parts[0, result], out[result])


@njit(**INNER)
def _sum_lines_of(
    dout: Any,
    weight: Any,
    out: Any,
    factor: Any,
    layout: Any,
    parts: Any,
    split: int,
    piece: int,
    pieces: int,
) -> None:
    (kept, summed, line), factor = layout_of(layout), Factor(factor[0], factor[1])
    results, steps, splits, last = positions(kept), positions(summed), parts.shape[0], len(summed.lengths) - 1
    inner = summed.lengths[last]
    for result in range(results * piece // pieces, results * (piece + 1) // pieces):
        in_dout, in_weight = offsets_at(result, kept)
        total = 0.0
        first, end = steps * split // splits, steps * (split + 1) // splits
        while line.length <= SHORT and first < end:
            more, rows = offsets_at(first, summed), min(inner - first % inner, end - first)
            at, share = in_dout + more[0], in_weight + more[1]
            for row in range(rows):
                places = at + row * summed.dout[last], share + row * summed.weight[last]
                total += _sum_short_line(dout, places[0], weight, places[1], line, factor)
            first += rows
        for step in range(first, end):
            more = offsets_at(step, summed)
            at, share = in_dout + more[0], in_weight + more[1]
            total += _sum_line(dout, at, weight, share, line.dense, factor, line.length)
        parts[split, result] = total
        if splits == 1:
            out[result] = narrow(total, out[result])


@parallel(error_model="numpy")
def sum_lines(dout: Any, weight: Any, out: Any, factor: Any, layout: Any, parts: Any, pieces: int) -> None:
    """Sum lines into out, one result per position of the retained axes.

    factor: of dout, its offset and sign; layout: retained and summed axes and the line, by
    `numbers_of`. parts (splits, results) in float64: splits share the summed axes. pieces share the results.
    """
    splits = parts.shape[0]
    for task in prange(splits * pieces):
        split = task // pieces
        piece = task - split * pieces
        _sum_lines_of(dout, weight, out, factor, layout, parts, split, piece, pieces)
    if splits > 1:
        _add_parts(parts, out)


@njit(**INNER)
def _sum_columns_of(
    dout: Any,
    weight: Any,
    out: Any,
    factor: Any,
    layout: Any,
    parts: Any,
    split: int,
    piece: int,
    pieces: int,
) -> None:
    (kept, summed, line), factor = layout_of(layout), Factor(factor[0], factor[1])
    tiles, splits, inner = (line.length + TILE - 1) // TILE, parts.shape[0], summed.lengths[len(summed.lengths) - 1]
    units, steps, results = positions(kept) * tiles, positions(summed), line.length // line.repeats
    totals = np.empty(min(TILE, line.length), np.float64)
    for unit in range(units * piece // pieces, units * (piece + 1) // pieces):
        slot = unit // tiles
        start = (unit - slot * tiles) * TILE
        width = min(TILE, line.length - start)
        in_dout, in_weight = offsets_at(slot, kept)
        along = start if line.dense else 0
        totals[:width] = 0
        first, end = steps * split // splits, steps * (split + 1) // splits
        while line.length <= SHORT and first < end:
            more, rows = offsets_at(first, summed), min(inner - first % inner, end - first)
            at, share = in_dout + more[0], in_weight + more[1]
            _add_short_lines(dout, at, weight, share, rows, summed, line, factor, totals)
            first += rows
        for step in range(first, end):
            more = offsets_at(step, summed)
            at, share = in_dout + more[0] + start, in_weight + more[1] + along
            size = width if line.last == line.length or (step + 1) % inner else line.last
            _add_line(dout, at, weight, share, line.dense, factor, totals, size)
        for repeat in range(1, line.repeats):
            for k in range(uintp(results)):
                totals[k] += totals[uintp(repeat * results) + k]
        place = uintp(slot * results + start)
        for k in range(uintp(width // line.repeats)):
            if splits > 1:
                parts[split, place + k] = totals[k]
            else:
                out[place + k] = narrow(totals[k], out[place + k])


@parallel(error_model="numpy")
def sum_columns(dout: Any, weight: Any, out: Any, factor: Any, layout: Any, parts: Any, pieces: int) -> None:
    """Sum along columns into out, one result per element of a line and retained position; the rest as in sum_lines.

    parts (splits, results) in float64; results is 1 for a single split.
    """
    splits = parts.shape[0]
    for task in prange(splits * pieces):
        split = task // pieces
        _sum_columns_of(dout, weight, out, factor, layout, parts, split, task - split * pieces, pieces)
    if splits > 1:
        _add_parts(parts, out)


@njit(**INNER)
def _scale_lines_of(
    dout: Any, weight: Any, dx: Any, dy: Any, factors: Any, layout: Any, piece: int, pieces: int
) -> None:
    (outer, _, line), (to_x, to_y) = layout_of(layout), _factors_of(factors)
    each = (line.length + PIECE - 1) // PIECE
    units = positions(outer) * each
    for unit in range(units * piece // pieces, units * (piece + 1) // pieces):
        slot = unit // each
        start = (unit - slot * each) * PIECE
        width = min(PIECE, line.length - start)
        in_dout, in_weight = offsets_at(slot, outer)
        at, share = in_dout + start, in_weight + (start if line.dense else 0)
        if dx.size:
            _scale_line(dout, at, weight, share, line.dense, to_x, dx, width)
        if dy.size:
            _scale_line(dout, at, weight, share, line.dense, to_y, dy, width)


@parallel(error_model="numpy")
def scale_lines(dout: Any, weight: Any, dx: Any, dy: Any, factors: Any, layout: Any, pieces: int) -> None:
    """Gradients that are not summed, of a weight that broadcasts; either may be empty. factors: of dx and of dy."""
    for piece in prange(pieces):
        _scale_lines_of(dout, weight, dx, dy, factors, layout, piece, pieces)


@njit(**INNER)
def _scale_copied(dout: Any, at: int, shares: Any, factor: Any, out: Any, count: int) -> None:
    """Set out[at:] to factor dout[at:], `count` elements, a weight for each."""
    first = uintp(at)
    for k in range(uintp(count)):
        value = (factor.offset + factor.sign * widen(shares[k])) * widen(dout[first + k])
        out[first + k] = narrow(value, out[first + k])


@njit(**INNER)
def _copy_weights(weight: Any, outer: Any, line: Any, first: int, count: int, shares: Any) -> None:
    """Weights of the elements of `count` lines from line `first` on."""
    length, step = uintp(line.length), uintp(1 if line.dense else 0)
    for number in range(count):
        at, to = uintp(offsets_at(first + number, outer)[1]), uintp(number) * length
        for k in range(length):
            shares[to + k] = weight[at + k * step]


@njit(**INNER)
def _scale_short_lines_of(
    dout: Any, weight: Any, dx: Any, dy: Any, factors: Any, layout: Any, piece: int, pieces: int
) -> None:
    (outer, _, line), (to_x, to_y) = layout_of(layout), _factors_of(factors)
    lines, at_once = positions(outer), max(1, COPIED // line.length)
    begin, end = lines * piece // pieces, lines * (piece + 1) // pieces
    shares = np.empty(at_once * line.length, weight.dtype)
    for first in range(begin, end, at_once):
        count = min(at_once, end - first)
        if first == begin or outer.weight.any():
            _copy_weights(weight, outer, line, first, count, shares)
        at = first * line.length
        if dx.size:
            _scale_copied(dout, at, shares, to_x, dx, count * line.length)
        if dy.size:
            _scale_copied(dout, at, shares, to_y, dy, count * line.length)


@parallel(error_model="numpy")
def scale_short_lines(dout: Any, weight: Any, dx: Any, dy: Any, factors: Any, layout: Any, pieces: int) -> None:
    """Like `scale_lines`, in `pieces` for as many threads: weights are copied, so that one loop takes several lines."""
    for piece in prange(pieces):
        _scale_short_lines_of(dout, weight, dx, dy, factors, layout, piece, pieces)
