"""Numba kernels of lerp and lerp_grad for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Type of indices known to be non-negative: loops over them vectorise."""


@njit(inline="always", error_model="numpy")
def _blend(x: Any, y: Any, weight: Any) -> Any:
    """Interpolate x + weight (y - x): y at weight 1 and x where x = y, exactly, and finite if the result is.

    The difference of numbers of one sign cannot overflow; numbers of different signs are weighted separately.
    """
    one, half = type(weight)(1), type(weight)(0.5)
    rest, step = one - weight, y - x
    near = x + weight * step if weight < half else y - rest * step
    return near if (x < 0) == (y < 0) else rest * x + weight * y


@njit(**INNER)
def _blend_both(x: Any, at_x: Any, y: Any, at_y: Any, weight: Any, out: Any, at: Any, size: Any) -> None:
    for index in range(size):
        out[at + index] = narrow(_blend(widen(x[at_x + index]), widen(y[at_y + index]), weight), out[at + index])


@njit(**INNER)
def _blend_from(first: Any, y: Any, at_y: Any, weight: Any, out: Any, at: Any, size: Any) -> None:
    for index in range(size):
        out[at + index] = narrow(_blend(first, widen(y[at_y + index]), weight), out[at + index])


@njit(**INNER)
def _blend_block(
    x: Any, y: Any, weight: Any, number: Any, out: Any, places: Any, steps: Any, start: int, length: int
) -> None:
    """Compute `length` elements of out from `start`; places (3,), steps (3,): offsets and steps of x, y, weight."""
    at_x, at_y, at_w = uintp(places[0]), uintp(places[1]), uintp(places[2])
    at, size = uintp(start), uintp(length)
    share = widen(weight[at_w]) if weight.size else number
    if steps[0] == 1 and steps[1] == 1 and steps[2] == 0:
        _blend_both(x, at_x, y, at_y, share, out, at, size)
    elif steps[0] == 0 and steps[1] == 1 and steps[2] == 0:
        _blend_from(widen(x[at_x]), y, at_y, share, out, at, size)
    else:
        step_x, step_y, step_w = uintp(steps[0]), uintp(steps[1]), uintp(steps[2])
        for index in range(size):
            if weight.size:
                share = widen(weight[at_w + index * step_w])
            value = _blend(widen(x[at_x + index * step_x]), widen(y[at_y + index * step_y]), share)
            out[at + index] = narrow(value, out[at + index])


@parallel(error_model="numpy")
def lerp_lines(x: Any, y: Any, weight: Any, number: Any, out: Any, starts: Any, steps: Any, blocks: int) -> None:
    """Interpolate line by line, each in `blocks` parts: starts (lines, 3), steps (3,), in elements; out flat.

    An empty weight selects the number.
    """
    lines = starts.shape[0]
    length = out.size // lines
    for task in prange(lines * blocks):
        line, first, end = task // blocks, 0, length
        if blocks > 1:
            block = task - line * blocks
            first, end = length * block // blocks, length * (block + 1) // blocks
        places = (
            starts[line, 0] + first * steps[0],
            starts[line, 1] + first * steps[1],
            starts[line, 2] + first * steps[2],
        )
        _blend_block(x, y, weight, number, out, places, steps, line * length + first, end - first)


@njit(**INNER)
def _blend_part(x: Any, y: Any, weight: Any, out: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    _blend_both(x, uintp(start), y, uintp(start), weight, out, uintp(start), uintp(first - start))
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = narrow(_blend(widen(x[run + step]), widen(y[run + step]), weight), held[step])
        put_run(held, 0, out, run)
    _blend_both(x, uintp(whole), y, uintp(whole), weight, out, uintp(whole), uintp(end - whole))
    store_fence()


@parallel(error_model="numpy")
def lerp_streaming(x: Any, y: Any, weight: Any, number: Any, out: Any, pieces: int) -> None:
    """Interpolate flat x and y with one weight, in `pieces` for as many threads, with non-temporal stores."""
    share = widen(weight[0]) if weight.size else number
    for piece in prange(pieces):
        _blend_part(x, y, share, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@njit(**INNER)
def _grad_piece(dout: Any, dx: Any, dy: Any, weight: Any, rest: Any, start: int, end: int) -> None:
    if dx.size and dy.size:
        for index in range(uintp(start), uintp(end)):
            given = widen(dout[index])
            dx[index] = narrow(rest * given, dx[index])
            dy[index] = narrow(weight * given, dy[index])
    elif dx.size:
        for index in range(uintp(start), uintp(end)):
            dx[index] = narrow(rest * widen(dout[index]), dx[index])
    else:
        for index in range(uintp(start), uintp(end)):
            dy[index] = narrow(weight * widen(dout[index]), dy[index])


@parallel(error_model="numpy")
def grad_by_number(dout: Any, dx: Any, dy: Any, weight: Any, rest: Any, pieces: int) -> None:
    """Flat gradients without sums, in `pieces` for as many threads: dx = rest dout, dy = weight dout; optional."""
    for piece in prange(pieces):
        end = dout.size * (piece + 1) // pieces
        _grad_piece(dout, dx, dy, weight, rest, dout.size * piece // pieces, end)


@njit(**INNER)
def _grad_part(dout: Any, dx: Any, dy: Any, weight: Any, rest: Any, start: int, end: int) -> None:
    held_x, held_y = held_run(dout), held_run(dout)
    first, whole = whole_runs(dx if dx.size else dy, start, end)
    _grad_piece(dout, dx, dy, weight, rest, start, first)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            given = widen(dout[run + step])
            held_x[step] = narrow(rest * given, held_x[step])
            held_y[step] = narrow(weight * given, held_y[step])
        if dx.size:
            put_run(held_x, 0, dx, run)
        if dy.size:
            put_run(held_y, 0, dy, run)
    _grad_piece(dout, dx, dy, weight, rest, whole, end)
    store_fence()


@parallel(error_model="numpy")
def grad_streaming(dout: Any, dx: Any, dy: Any, weight: Any, rest: Any, pieces: int) -> None:
    """Like `grad_flat`, with non-temporal stores; dx and dy have the same offset within a cache line."""
    for piece in prange(pieces):
        end = dout.size * (piece + 1) // pieces
        _grad_part(dout, dx, dy, weight, rest, dout.size * piece // pieces, end)
