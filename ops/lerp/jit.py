"""Numba kernels of lerp and lerp_grad for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_lanes import Lanes, lanes_of, load, spread, store

uintp = np.uintp
"""Type of indices known to be non-negative: loops over them vectorise."""
SHORT = uintp(7)
"""Maximum length of lines whose operands are copied, so that one vector loop computes several lines."""
MEDIUM, OF_BYTES = 64, 4
"""Lines from one vector to below this length are whole vectors, the last of which overlaps the one before, of elements
of this size: a loop takes a check for overlapping arrays and a rest of single elements for each line."""
COPIED = 256
"""Elements copied at a time: the copies stay in the first-level cache."""


@njit(inline="always", error_model="numpy")
def _blend(x: Any, y: Any, weight: Any) -> Any:
    """Interpolate x + weight (y - x): y at weight 1 and x where x = y, exactly, and finite if the result is.

    The difference of numbers of one sign cannot overflow; numbers of different signs are weighted separately.
    """
    one, half = type(weight)(1), type(weight)(0.5)
    rest, step = one - weight, y - x
    near = x + weight * step if weight < half else y - rest * step
    return near if (x < 0) == (y < 0) else rest * x + weight * y


@intrinsic
def _blend_lanes(typingctx: Any, x: Any, y: Any, weight: Any, like: Any) -> Any:
    """`_blend` of lanes of the type of the array `like`; not for 16-bit floats, of which it is never called."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, share, _ = arguments
        vector = context.get_value_type(signature.return_type)
        if not isinstance(like.dtype, types.Float):
            return ir.Constant(vector, ir.Undefined)
        one, half, zero = (ir.Constant(vector, [number] * vector.count) for number in (1.0, 0.5, 0.0))
        rest, step = builder.fsub(one, share), builder.fsub(second, first)
        low = builder.fadd(first, builder.fmul(share, step))
        high = builder.fsub(second, builder.fmul(rest, step))
        near = builder.select(builder.fcmp_ordered("<", share, half), low, high)
        far = builder.fadd(builder.fmul(rest, first), builder.fmul(share, second))
        signs = [builder.fcmp_ordered("<", value, zero) for value in (first, second)]
        return builder.select(builder.icmp_signed("==", *signs), near, far)

    return Lanes(like.dtype)(x, y, weight, like), generate


@njit(inline="always", error_model="numpy")
def _first_line(start: Any, length: Any) -> Any:
    """The line of element `start`, and the element's index in it."""
    line = start // length
    return line, start - line * length


def _blending(varying: str) -> Any:
    """A loop for the operands that vary along a line: letters of x, y and w. One loop for all is not vectorised."""
    along_x, along_y, along_weight = ("x" in varying, "y" in varying, "w" in varying)

    @njit(**INNER)
    def loop(
        x: Any, y: Any, weight: Any, number: Any, out: Any, starts: Any, length: Any, begin: Any, end: Any
    ) -> None:
        line, skipped = _first_line(begin, length)
        at, lanes = begin, uintp(lanes_of(out)) if out.itemsize == OF_BYTES else uintp(MEDIUM)
        while at < end:
            size = min(length - skipped, end - at)
            at_x, at_y = uintp(starts[line, 0]), uintp(starts[line, 1])
            at_x, at_y = at_x + (skipped if along_x else uintp(0)), at_y + (skipped if along_y else uintp(0))
            at_w = uintp(starts[line, 2]) + (skipped if along_weight else uintp(0))
            first, second, share = widen(x[at_x]), widen(y[at_y]), widen(weight[at_w]) if weight.size else number
            if lanes <= size < uintp(MEDIUM):
                for start in range(uintp(0), size, lanes):
                    place = min(start, size - lanes)
                    of_x = load(x, at_x + place) if along_x else spread(first)
                    of_y = load(y, at_y + place) if along_y else spread(second)
                    of_w = load(weight, at_w + place) if along_weight else spread(share)
                    store(out, at + place, _blend_lanes(of_x, of_y, of_w, out))
                at, line, skipped = at + size, line + uintp(1), uintp(0)
                continue
            for index in range(size):
                if along_x:
                    first = widen(x[at_x + index])
                if along_y:
                    second = widen(y[at_y + index])
                if along_weight:
                    share = widen(weight[at_w + index])
                out[at + index] = narrow(_blend(first, second, share), out[at + index])
            at, line, skipped = at + size, line + uintp(1), uintp(0)

    return loop


_blend_both, _blend_all = _blending("xy"), _blending("xyw")
_blend_x, _blend_x_by, _blend_y, _blend_y_by, _blend_by = (_blending(names) for names in ("x", "xw", "y", "yw", "w"))
"""Loops by the operands that vary along a line: x, y or both, and the weight after `by` and in `all`."""


@njit(**INNER)
def _gather_lines(source: Any, operand: int, starts: Any, step: int, length: Any, lines: Any, held: Any) -> None:
    """Copy one operand's values of a range of lines to `held`, whole vectors at a time: each line ends the previous.

    The end of `held`, two vectors, is for lines at the end of the operand, past which no vector is loaded.
    """
    lanes, at, last = uintp(lanes_of(held)), uintp(0), starts.shape[0] - 1
    if step == 1 and starts[last, operand] == last * np.int64(length):
        first = lines[0] * length
        for index in range((lines[1] - lines[0]) * length):
            held[index] = source[first + index]
        return
    spare = uintp(held.size) - lanes - lanes
    for line in range(lines[0], lines[1]):
        place = uintp(starts[line, operand])
        if step == 0:
            near = far = spread(source[place])
        elif place + lanes + lanes <= uintp(source.size):
            near, far = load(source, place), load(source, place + lanes)
        else:
            for along in range(length):
                held[spare + along] = source[place + along]
            near, far = load(held, spare), load(held, spare + lanes)
        store(held, at, near)
        if length > lanes:
            store(held, at + lanes, far)
        at += length


@njit(**INNER)
def _blend_short(
    x: Any, y: Any, weight: Any, number: Any, out: Any, starts: Any, steps: Any, length: Any, begin: Any, end: Any
) -> None:
    """Compute lines `begin` to `end` from copies of the operands: one vector loop computes several lines.

    An operand whose lines all start at 0 is copied once.
    """
    size, each = COPIED + 4 * lanes_of(out), uintp(COPIED) // length
    of_x, of_y, of_w = np.empty(size, out.dtype), np.empty(size, out.dtype), np.empty(size, out.dtype)
    for line in range(begin, end, each):
        lines, is_first = (line, min(line + each, end)), line == begin
        at, count = line * length, (lines[1] - line) * length
        if is_first or steps[3]:
            _gather_lines(x, 0, starts, steps[0], length, lines, of_x)
        if is_first or steps[4]:
            _gather_lines(y, 1, starts, steps[1], length, lines, of_y)
        if weight.size:
            if is_first or steps[5]:
                _gather_lines(weight, 2, starts, steps[2], length, lines, of_w)
            for k in range(count):
                out[at + k] = narrow(_blend(widen(of_x[k]), widen(of_y[k]), widen(of_w[k])), out[at + k])
        else:
            for k in range(count):
                out[at + k] = narrow(_blend(widen(of_x[k]), widen(of_y[k]), number), out[at + k])


@parallel(error_model="numpy")
def lerp_lines(x: Any, y: Any, weight: Any, number: Any, out: Any, starts: Any, steps: Any, pieces: int) -> None:
    """Interpolate line by line, in one piece per thread; out flat, an empty weight selects the number.

    starts (lines, 3), steps (6,): offsets of x, y and weight at the start of each line, and their steps along it, 0
    or 1, in elements; whether their lines start at different offsets.
    """
    length, varies, lines = uintp(out.size // starts.shape[0]), steps[0] + 2 * steps[1] + 4 * steps[2], starts.shape[0]
    for piece in prange(pieces):
        begin, end = uintp(out.size * piece // pieces), uintp(out.size * (piece + 1) // pieces)
        if length <= SHORT:
            begin, end = uintp(lines * piece // pieces), uintp(lines * (piece + 1) // pieces)
            _blend_short(x, y, weight, number, out, starts, steps, length, begin, end)
        elif varies == 3:
            _blend_both(x, y, weight, number, out, starts, length, begin, end)
        elif varies == 1:
            _blend_x(x, y, weight, number, out, starts, length, begin, end)
        elif varies == 2:
            _blend_y(x, y, weight, number, out, starts, length, begin, end)
        elif varies == 7:
            _blend_all(x, y, weight, number, out, starts, length, begin, end)
        elif varies == 5:
            _blend_x_by(x, y, weight, number, out, starts, length, begin, end)
        elif varies == 6:
            _blend_y_by(x, y, weight, number, out, starts, length, begin, end)
        else:
            _blend_by(x, y, weight, number, out, starts, length, begin, end)


@njit(**INNER)
def _blend_range(x: Any, y: Any, weight: Any, out: Any, start: int, end: int) -> None:
    for at in range(uintp(start), uintp(end)):
        out[at] = narrow(_blend(widen(x[at]), widen(y[at]), weight), out[at])


@njit(**INNER)
def _blend_part(x: Any, y: Any, weight: Any, out: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    _blend_range(x, y, weight, out, start, first)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = narrow(_blend(widen(x[run + step]), widen(y[run + step]), weight), held[step])
        put_run(held, 0, out, run)
    _blend_range(x, y, weight, out, whole, end)
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
def _weighted_piece(dout: Any, share: Any, dx: Any, dy: Any, start: int, end: int) -> None:
    if dx.size and dy.size:
        for index in range(uintp(start), uintp(end)):
            given, weight = widen(dout[index]), widen(share[index])
            dx[index] = narrow((type(weight)(1) - weight) * given, dx[index])
            dy[index] = narrow(weight * given, dy[index])
    elif dx.size:
        for index in range(uintp(start), uintp(end)):
            weight = widen(share[index])
            dx[index] = narrow((type(weight)(1) - weight) * widen(dout[index]), dx[index])
    else:
        for index in range(uintp(start), uintp(end)):
            dy[index] = narrow(widen(share[index]) * widen(dout[index]), dy[index])


@parallel(error_model="numpy")
def grad_by_weights(dout: Any, share: Any, dx: Any, dy: Any, pieces: int) -> None:
    """Like `grad_by_number`, with a weight for each element: dx = (1 - share) dout, dy = share dout."""
    for piece in prange(pieces):
        _weighted_piece(dout, share, dx, dy, dout.size * piece // pieces, dout.size * (piece + 1) // pieces)


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
    """Like `lerp_flat` on CUDA, with non-temporal stores; dx and dy have the same offset within a cache line."""
    for piece in prange(pieces):
        end = dout.size * (piece + 1) // pieces
        _grad_part(dout, dx, dy, weight, rest, dout.size * piece // pieces, end)
