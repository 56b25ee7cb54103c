"""Timed samples on inputs that change, whose outputs are checked: a time counts only for work that was done.

Before each sample some inputs change in place and outputs are poisoned, outside the timed region; after it, the outputs
are compared with what the changed inputs demand; then the change is undone. A kernel that returns early, repeats an
earlier result, or computed everything when it was bound leaves something else. Without a known way to vary a case (see
`variation`), outputs are poisoned all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np
from opgauge.harness.result.result import Measurement
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.bits import has_bits
from opgauge.harness.worker.emphasis import choose_slices, emphasize, emphasize_all, write_inputs
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.variation import Exchange, Scaling, along, expect_slices, find_variation, take
from opgauge.harness.worker.verify import Expected, check, expect
from opgauge.ops import Bound, dtype_info
from opgauge.ops._core.backend import to_numpy
from opgauge.ops._core.op import Array

SHARE = 0.04
"""Of the time of a trial, at most, that whole outputs are poisoned and compared; parts of them always are."""
SMALL_BYTES = 64 << 10
"""Outputs up to this are poisoned and compared whole each time."""
MOST_EXCHANGED = 64
"""Slices, at most, that change places with as many others."""
LARGEST_SLICES = 1 << 20
"""Bytes of exchanged slices, at most, where single slices are smaller."""
JUDGED = 4
"""Slices, at most, whose reference is computed when their bits differ from the known ones."""
LOOSE_BYTES = 16 << 20
LOOSE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""Relative error beyond which outputs that should equal known ones up to rounding are judged by the reference."""


SINGLE_S, LEAST_SINGLE, MOST_SINGLE, PAIRED_SINGLE = 0.02, 8, 200, 40
"""Single calls: seconds of them, their number, and how many are compared with calls on unchanged inputs."""
MOST_DEARER, LEAST_DEARER_NS = 1.6, 2_000
"""A call on changed inputs may take so many times what one on unchanged inputs does, and this much more."""
MOST_SLOWER, SLACK_NS, THREADS_SLACK_NS = 8.0, 50_000, 100_000_000
"""It may take so many times what one of many in a row does, and this much more: caches and sleeping threads."""
MANY_THREADS = 1.3
"""Processor time per wall time of a kernel that uses several threads."""
REPEATS_S, MOST_REPEATS = 0.02, 400
"""Calls on the same inputs whose outputs are compared: seconds of them, and their number."""
THREADS_NS = 5_000
PAUSE_S = 0.001
"""Pause before a single call that may use several threads (longer than `THREADS_NS`), so that all of them are asleep
whatever the call before did: a call whose threads are still awake takes half as long."""
ROUNDS = 3
"""Times that a difference has to be seen before it counts."""


@dataclass
class _Change:
    """What a sample changed. pairs: first slices of two ranges of `length` that changed places."""

    whole: bool
    pair: tuple[int, int] | None = None
    length: int = 0
    is_scaled: bool = False


class Audit:
    """Hooks of one kernel's samples: see `measure.timer.Hooks`."""

    def __init__(self, attempt: Attempt, reference: Callable[[], Expected], *, seed: int | None = None) -> None:
        self._attempt = attempt
        self._reference = reference
        self._rng = np.random.default_rng(seed)
        self._variation = None if attempt.captures_inputs else find_variation(attempt.case)
        self._bytes = sum(int(array.nbytes) for array in attempt.accepted.values())
        self._begun = perf_counter()
        self._spent_s = self._whole_s = 0.0
        self._started = 0.0
        self._change: _Change | None = None
        self.samples = self.whole = self.varied = 0

    def before(self) -> None:
        """Change inputs and poison outputs; not timed."""
        self._started = perf_counter()
        elapsed = self._started - self._begun
        whole = self._bytes <= SMALL_BYTES or self._spent_s + self._whole_s <= SHARE * elapsed
        change = self._choose(whole=whole)
        if change.whole:
            self._attempt.buffers.poison(int(self._rng.integers(3)))
        else:
            self._attempt.buffers.poison_parts(self._rng)
        self._apply(change, self._attempt.buffers.inputs, is_input=True)
        self._change = change
        self._started = perf_counter() - self._started

    def after(self, returned: Any) -> None:
        """Check what the sample left, and undo the change; not timed. Raises WrongError."""
        change, begun = self._change, perf_counter()
        if change is None:
            return
        outputs = self._attempt.outputs(returned)
        with self._expecting(change):
            if not self._agree(outputs, change):
                self._judge(outputs, change)
        self._undo(change)
        self.samples += 1
        self.whole += change.whole
        self.varied += change.pair is not None or change.is_scaled
        spent = perf_counter() - begun + self._started
        if self._bytes > SMALL_BYTES and change.whole:
            self._spent_s, self._whole_s = self._spent_s + spent, spent

    def check_emphasis(self, call: Bound) -> None:
        """Call once on inputs of which a few elements matter (see `emphasis`); raises WrongError."""
        attempt, case = self._attempt, self._attempt.case
        chosen = None if attempt.captures_inputs else choose_slices(case, self._variation, self._rng)
        if chosen is None or attempt.kernel.relaxed != 1:
            return
        inputs = attempt.buffers.inputs
        if isinstance(self._variation, Exchange) and chosen:
            axes, number = self._variation, len(chosen)
            values = {name: to_numpy(array) for name, array in take(inputs, axes.inputs, chosen).items()}
            changed = emphasize(case, values, axes.inputs, self._rng)
            part = expect_slices(case, Exchange(axes.inputs, axes.outputs, number), changed, range(number))
            if part is None:
                return
            expected = part
        else:
            axes = None
            values = {name: to_numpy(array).copy() for name, array in inputs.items()}
            changed = {
                name: array.reshape(values[name].shape)
                for name, array in emphasize_all(case, values, self._rng).items()
            }
            expected = expect(case, Inputs(changed))
        write_inputs(inputs, axes, chosen, changed)
        try:
            outputs = attempt.outputs(attempt.call(call, 1))
            got = outputs if axes is None else take(outputs, axes.outputs, chosen)
            found = check({name: to_numpy(array) for name, array in got.items()}, expected, attempt.kernel.relaxed)
            if not found.ok and axes is not None:  # the probe may have taken for slices what is none: judge all of it
                now = {name: to_numpy(array) for name, array in inputs.items()}
                host = {name: to_numpy(array) for name, array in outputs.items()}
                found = check(host, expect(case, Inputs(now)), attempt.kernel.relaxed)
        finally:
            write_inputs(inputs, axes, chosen, values)
        if not found.ok:
            reason = f"{found.reason} (on inputs of which a few elements matter)"
            raise WrongError(reason, replace(found, reason=reason))

    def check_single_calls(self, call: Bound, repeated: Measurement) -> None:
        """Time calls one by one; raises WrongError where calls on unchanged inputs do less than others.

        Calls on changed inputs alternate with calls on inputs and outputs as the call before left them, after the same
        amount of other work: caches and branch predictors are alike. repeated: samples of several calls each, between
        which nothing changes and little time passes.
        """
        if repeated.calls_per_sample == 1:
            return
        self._check_repeats(call)
        usual_ns = repeated.median_ns
        busy_ns = sum(repeated.cpu_ns) / max(len(repeated.cpu_ns), 1)
        slack_ns = THREADS_SLACK_NS if busy_ns > MANY_THREADS * usual_ns else SLACK_NS
        pause_s = PAUSE_S if usual_ns > THREADS_NS else 0.0
        for _ in range(ROUNDS):
            changed_ns, unchanged_ns = self._time_single_calls(call, pause_s)
            if changed_ns > MOST_DEARER * unchanged_ns + LEAST_DEARER_NS:
                reason = f"a call takes {_us(changed_ns)} on changed inputs and {_us(unchanged_ns)} on unchanged ones"
                continue
            if self._attempt.kernel.arrays == "torch" or changed_ns <= MOST_SLOWER * usual_ns + slack_ns:
                return
            reason = f"a call takes {_us(changed_ns)} by itself and {_us(usual_ns)} right after another one"
        reason += ": it does not repeat its work"
        raise WrongError(reason)

    def _check_repeats(self, call: Bound) -> None:
        """Compare the outputs of many calls on the same inputs; raises WrongError."""
        attempt = self._attempt
        if self._bytes > SMALL_BYTES or not attempt.repeatable or not attempt.kernel.deterministic:
            return
        end = perf_counter() + REPEATS_S
        attempt.check(attempt.call(call, 0), self._reference, WHEN)
        for _ in range(MOST_REPEATS):
            outputs = attempt.outputs(call())
            if not all(has_bits(array, attempt.accepted[name]) for name, array in outputs.items()):
                attempt.check(tuple(outputs.values()), self._reference, WHEN)
            if perf_counter() > end:
                return

    def _time_single_calls(self, call: Bound, pause_s: float) -> tuple[float, float]:
        """Shortest times in ns of single calls on changed inputs, each of which is checked, and on unchanged ones."""
        changed: list[int] = []
        unchanged: list[int] = []
        end = perf_counter() + SINGLE_S
        while len(changed) < LEAST_SINGLE or (perf_counter() < end and len(changed) < MOST_SINGLE):
            self.before()
            sleep(pause_s)
            begun = perf_counter_ns()
            returned = call()
            changed.append(perf_counter_ns() - begun)
            self.after(returned)
            if len(changed) > PAIRED_SINGLE:
                continue
            returned = call()
            self._disturb(returned)
            sleep(pause_s)
            begun = perf_counter_ns()
            call()
            unchanged.append(perf_counter_ns() - begun)
        return float(min(changed)), float(min(unchanged))

    def _disturb(self, returned: Any) -> None:
        """As much other work as between calls on changed inputs, which leaves inputs and outputs as they are."""
        change = self._choose(whole=False)
        self._apply(change, self._attempt.buffers.inputs, is_input=True)
        self._change = change
        outputs = self._attempt.outputs(returned)
        with self._expecting(change):
            self._agree(outputs, change)
        self._undo(change)

    def _choose(self, *, whole: bool) -> _Change:
        variation = self._variation
        if isinstance(variation, Exchange):
            half = variation.size // 2
            slice_bytes = max(1, sum(int(self._attempt.buffers.inputs[name].nbytes) for name in variation.inputs))
            most = max(1, min(half, MOST_EXCHANGED, LARGEST_SLICES * variation.size // slice_bytes))
            length = int(self._rng.integers(1, most + 1))
            first = int(self._rng.integers(0, variation.size - 2 * length + 1))
            second = int(self._rng.integers(first + length, variation.size - length + 1))
            return _Change(whole, (first, second), length)
        return _Change(whole, is_scaled=isinstance(variation, Scaling) and whole)

    def _apply(self, change: _Change, arrays: Mapping[str, Any], *, is_input: bool) -> None:
        """Change inputs, or the outputs that are expected of them."""
        variation = self._variation
        if isinstance(variation, Exchange) and change.pair:
            for name, axis in (variation.inputs if is_input else variation.outputs).items():
                if name in arrays:
                    _exchange(arrays[name], axis, *change.pair, change.length)
        elif isinstance(variation, Scaling) and change.is_scaled:
            factors = dict.fromkeys(variation.inputs, float(variation.factor)) if is_input else variation.outputs
            for name, factor in factors.items():
                if name in arrays:
                    _multiply(arrays[name], factor)

    def _undo(self, change: _Change) -> None:
        variation = self._variation
        if isinstance(variation, Scaling) and change.is_scaled:
            for name in variation.inputs:
                _multiply(self._attempt.buffers.inputs[name], 1 / variation.factor)
        else:
            self._apply(change, self._attempt.buffers.inputs, is_input=True)
        self._change = None

    @contextmanager
    def _expecting(self, change: _Change) -> Iterator[None]:
        """The accepted outputs are meanwhile those of the changed inputs."""
        accepted, variation = self._attempt.accepted, self._variation
        self._apply(change, accepted, is_input=False)
        try:
            yield
        finally:
            if isinstance(variation, Scaling) and change.is_scaled:
                for name, factor in variation.outputs.items():
                    _multiply(accepted[name], 1 / factor)
            else:
                self._apply(change, accepted, is_input=False)

    def _agree(self, outputs: Mapping[str, Any], change: _Change) -> bool:
        """Whether outputs have the expected bits: all of them, or those that were changed and poisoned."""
        accepted = self._attempt.accepted
        if outputs.keys() != accepted.keys():
            return False
        if change.whole or any(
            isinstance(accepted[name], np.ndarray) != isinstance(one, np.ndarray) for name, one in outputs.items()
        ):
            return all(has_bits(array, accepted[name]) for name, array in outputs.items())
        return all(
            has_bits(got, want)
            for name, array in outputs.items()
            for got, want in zip(
                self._parts(name, array, change), self._parts(name, accepted[name], change), strict=True
            )
        )

    def _parts(self, name: str, array: Any, change: _Change) -> Iterator[Any]:
        """Slices of an output that changed places, and the parts of it that were poisoned."""
        variation = self._variation
        if isinstance(variation, Exchange) and change.pair:
            for start in change.pair:
                yield array[along(variation.outputs[name], slice(start, start + change.length))]
        flat = array.reshape(-1)
        for part in self._attempt.buffers.poisoned.get(name, ()):
            yield flat[part]

    def _judge(self, outputs: Mapping[str, Any], change: _Change) -> None:
        """Judge outputs that differ from the expected ones in some bits; raises WrongError."""
        if self._is_loosely_right(outputs) and self._are_slices_right(outputs, change):
            return
        case, buffers = self._attempt.case, self._attempt.buffers
        values = {name: to_numpy(array) for name, array in buffers.inputs.items()}
        found = check(
            {name: to_numpy(array) for name, array in outputs.items()},
            expect(case, Inputs(values)),
            self._attempt.kernel.relaxed,
        )
        if not found.ok:
            reason = f"{found.reason} ({WHEN})"
            raise WrongError(reason, replace(found, reason=reason))

    def _is_loosely_right(self, outputs: Mapping[str, Any]) -> bool:
        """Whether outputs are near the expected ones, where they are small enough to look at all of them."""
        if self._bytes > LOOSE_BYTES:
            return True
        accepted = self._attempt.accepted
        return outputs.keys() == accepted.keys() and all(
            _is_near(to_numpy(array), to_numpy(accepted[name])) for name, array in outputs.items()
        )

    def _are_slices_right(self, outputs: Mapping[str, Any], change: _Change) -> bool:
        """Whether some slices, those that changed places first, are right by their own reference."""
        variation = self._variation
        if not isinstance(variation, Exchange) or not change.pair:
            return self._bytes <= LOOSE_BYTES
        chosen = sorted({*change.pair, *(int(one) for one in self._rng.integers(0, variation.size, JUDGED - 2))})
        inputs = {
            name: to_numpy(array)
            for name, array in _sliced(self._attempt.buffers.inputs, variation.inputs, chosen).items()
        }
        every = Exchange(variation.inputs, variation.outputs, len(chosen))
        expected = expect_slices(self._attempt.case, every, inputs, range(len(chosen)))
        got = {name: to_numpy(array) for name, array in take(outputs, variation.outputs, chosen).items()}
        return expected is not None and check(got, expected, self._attempt.kernel.relaxed).ok


WHEN = "in a timed sample"


def _sliced(arrays: Mapping[str, Any], axes: Mapping[str, int], chosen: Sequence[int]) -> dict[str, Any]:
    return take(arrays, axes, list(chosen))


def _us(time_ns: float) -> str:
    return f"{time_ns / 1e3:.3g} µs"


def _exchange(array: Any, axis: int, first: int, second: int, length: int) -> None:
    """Let two ranges of slices change places."""
    here = array[along(axis, slice(first, first + length))]
    there = array[along(axis, slice(second, second + length))]
    beside = here.copy()
    here[...] = there
    there[...] = beside


def _multiply(array: Any, factor: float) -> None:
    """Multiply in place; integers exactly, where the factor is one or divides them."""
    if array.dtype.kind in "iu":
        if abs(factor) >= 1:
            array *= array.dtype.type(int(factor))
        else:
            array //= array.dtype.type(round(1 / factor))
    else:
        array *= array.dtype.type(factor)


def _is_near(got: Array, want: Array) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    info = dtype_info(got.dtype.name)
    if info.kind not in ("float", "complex"):
        return bool(np.array_equal(got, want))
    wide = np.complex128 if info.kind == "complex" else np.float64
    first, second = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(second)
        scale = float(np.mean(np.abs(second[finite]))) if finite.any() else 0.0
        limit = LOOSE.get(info.name, LOOSE["float32"]) * (np.abs(second) + scale)
        near = (np.abs(first - second) <= limit) | (first == second) | (np.isnan(first) & np.isnan(second))
    return bool(near.all())
