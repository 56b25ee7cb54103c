"""Succession of calls, between which an element or two of the inputs and a byte of the outputs change.

Between samples more happens, and more time passes: a kernel could detect that, work only then, and skip the other calls
of a sample. Writing them takes little more time than the loop of a sample takes per call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

import numpy as np

from opgauge.harness.measure.cpu import switches_of_process
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.bits import has_bits
from opgauge.harness.worker.inputs import Inputs, on_host
from opgauge.harness.worker.verify import check, expect
from opgauge.ops import Bound
from opgauge.ops._core.backend import to_numpy

BITS = {
    "float8_e4m3fn": 1 << 2,
    "float8_e5m2": 1 << 1,
    "float16": 1 << 9,
    "bfloat16": 1 << 6,
    "float32": 1 << 22,
    "float64": 1 << 51,
}
"""Highest bit of the mantissa, by dtype: a change by a quarter to a half."""
WORD = 8
"""Bytes of the largest word."""
TRIED = 8
"""Pairs of integers that are tried to find two that differ."""
PARTS = {"complex64": "float32", "complex128": "float64"}
"""Dtype of the parts of complex numbers."""
REPEATS_NS, MOST_REPEATS = 10_000_000, 400
"""Calls on the same inputs whose outputs are compared: CPU time of them, and their number."""
TRIES, LEAST_TRIES, TRIES_NS, MOST_BEFORE = 12, 2, 5_000_000, 20
"""Changes whose outputs are compared: most and least of them, and CPU time; and most calls right before every other.

Before the others are up to as many as a sample has. All are made if one finds outputs of earlier inputs.
"""
STALE = 3
"""Number of times that outputs of earlier inputs must be found before they count."""
LEAST_SEQUENCES, SEQUENCES, SEQUENCE_NS, MOST_CALLS = 2, 5, 300_000, 400
"""Timed sequences of calls of each kind, least that kept their CPU and most; their time in ns, and their most calls.

Every other has up to as many calls as a sample: a kernel may work in the first ones in a row, and skip the rest.
"""
MOST_DEARER, LEAST_DEARER_NS = 1.6, 1_000
"""Largest ratio of a call after a change to one without, and least difference in ns."""
ROUNDS = 3
"""Number of times that a difference must be measured before it counts."""
GARBAGE = 0x5A
"""Byte that garbage consists of."""
LOOKS, LEAST_UNWRITTEN = 6, 2
"""Pairs of calls right after which a byte is looked at, and least of them that must have left garbage: random bytes may
equal it once."""
UNUSED = memoryview(np.zeros(1, np.uint64))
"""Memory that nothing reads."""


class ElementChange(NamedTuple):
    """A bit of an element of an input that flips, or two integers that are exchanged: all values stay valid.

    bits: that differ between the values. other: the element with which it is exchanged; None of a bit that flips.
    """

    name: str
    at: int
    bits: int
    other: int | None = None

    def places(self, words: Mapping[str, memoryview]) -> tuple[memoryview, int, memoryview, int, int]:
        """Two places in memory and the bits to change in both; the second is unused memory if a bit flips."""
        place = words[self.name]
        return place, self.at, *((UNUSED, 0) if self.other is None else (place, self.other)), self.bits

    def apply(self, words: Mapping[str, memoryview]) -> None:
        """Change the input, or undo that."""
        place, at, twin, other, bits = self.places(words)
        place[at] ^= bits
        twin[other] ^= bits


class Succession:
    """Successive calls of one kernel, on its buffers on the CPU."""

    def __init__(self, attempt: Attempt, call: Bound, rng: np.random.Generator) -> None:
        self._attempt = attempt
        self._call = call
        self._returned: Any = None
        self._rng = rng
        self._words = {name: _as_words(array) for name, array in attempt.buffers.inputs.items() if array.size}
        self._out = [_as_bytes(array) for array in attempt.buffers.out.values() if array.size]

    def check_repeats(self) -> None:
        """Compare the outputs of many calls with the accepted ones, on the same inputs; raises WrongError."""
        attempt = self._attempt
        if not (attempt.repeatable and attempt.kernel.deterministic):
            return
        end = process_time_ns() + REPEATS_NS
        attempt.buffers.poison(0)
        for _ in range(MOST_REPEATS):
            found = attempt.outputs(self._call())
            if not all(has_bits(array, attempt.accepted[name]) for name, array in found.items()):
                self._judge(on_host(found))
                return  # bits differ from call to call, and are valid
            if process_time_ns() > end:
                return

    def check_written(self) -> None:
        """Look at a byte of an output right after calls; raises WrongError if they have not written it.

        Between a call and the look lies nothing at which the interpreter calls a hook or a handler, which could compute
        then. Of kernels that return arrays nothing is known until a function looks at them.
        """
        call, unwritten = self._call, 0
        found, own = self._attempt.outputs(call()), self._attempt.buffers.out
        if not self._out or not all(
            np.may_share_memory(found[name], array) for name, array in own.items() if array.size
        ):
            return
        for number, at in self._draw_out(LOOKS):
            out = self._out[number]
            out[at] = GARBAGE
            first = (call(), out[at])[1]
            out[at] = ~GARBAGE & 0xFF
            second = (call(), out[at])[1]
            unwritten += first == GARBAGE and second == ~GARBAGE & 0xFF
        if unwritten >= LEAST_UNWRITTEN:
            reason = f"{unwritten} of {LOOKS} calls returned before they had written the outputs"
            raise WrongError(reason)

    def check_outputs(self, calls: int) -> None:
        """Change an element between two calls; raises WrongError if the outputs are those of the previous inputs.

        calls: of a sample.
        """
        attempt = self._attempt
        if not (attempt.repeatable and attempt.kernel.deterministic):
            return
        stale, end = 0, process_time_ns() + TRIES_NS
        for number in range(TRIES):
            if number >= LEAST_TRIES and not stale and process_time_ns() > end:
                return
            before = self._outputs()
            for change in self._draw(1):
                change.apply(self._words)
                wanted = self._outputs()
                change.apply(self._words)
                most = calls if number % 2 else MOST_BEFORE
                found = self._outputs_after(change, most, spoil=number % 4 == 3)
                if not all(has_bits(array, wanted[one]) for one, array in found.items()):
                    self._judge(found)
                    if not all(has_bits(array, before[one]) for one, array in found.items()):
                        return  # bits differ from call to call, and are valid
                    stale += 1
                change.apply(self._words)
            if stale >= STALE:
                reason = "a call right after another one repeats its result, though an input has changed"
                raise WrongError(reason)

    def check_times(self, calls: int, usual_ns: float) -> None:
        """Time calls that each follow a change; raises WrongError if they take longer than others."""
        least = int(max(2, min(calls, MOST_CALLS, SEQUENCE_NS // max(usual_ns, 1))))
        spare = {name: memoryview(np.zeros_like(words)) for name, words in self._words.items()}
        spare_out = [memoryview(bytearray(len(place))) for place in self._out]
        if not self._out:
            return
        for _ in range(ROUNDS):
            same_ns = changed_ns = float("inf")
            undisturbed = 0
            for left in reversed(range(SEQUENCES)):
                number = int(self._rng.integers(-(-least // 2), least + 1))
                drawn, spoilt, switches = self._draw(number), self._draw_out(number), switches_of_process()
                turns = 1 if left % 2 == 0 else max(1, calls // (2 * number))
                same_ns = min(same_ns, self._time(spare, spare_out, drawn, spoilt, turns))
                undisturbed += switches_of_process() == switches
                changed_ns = min(changed_ns, self._time(self._words, self._out, drawn, spoilt, turns))
                self._check_last()
                is_sure = undisturbed >= LEAST_SEQUENCES or not left
                if is_sure and changed_ns <= MOST_DEARER * same_ns + LEAST_DEARER_NS:
                    return
        reason = (
            f"a call takes {time_text(changed_ns)} where an element has changed since the last one and "
            f"{time_text(same_ns)} where none has: it does not repeat its work"
        )
        raise WrongError(reason)

    def _time(
        self,
        inputs: Mapping[str, memoryview],
        outputs: Sequence[memoryview],
        drawn: Sequence[ElementChange],
        spoilt: Sequence[tuple[int, int]],
        turns: int,
    ) -> float:
        """Time per call in ns; before each elements of an input and a byte of an output are written.

        turns: times that all changes are made and undone again in reverse order; once, they are made.
        """
        call = self._call
        places = [change.places(inputs) for change in drawn] or [(UNUSED, 0, UNUSED, 0, 1)] * len(spoilt)
        steps = [(*place, outputs[number], at) for place, (number, at) in zip(places, spoilt, strict=True)]
        if turns > 1:
            steps = (steps + steps[::-1]) * turns
        self._returned = call()
        begun = perf_counter_ns()
        for place, at, twin, other, bits, out, out_at in steps:
            place[at] ^= bits
            twin[other] ^= bits
            out[out_at] = GARBAGE
            returned = call()
        ended = perf_counter_ns()
        self._returned = returned
        return (ended - begun) / len(steps)

    def _check_last(self) -> None:
        """Compare the outputs of the last timed call with those of one that follows; raises WrongError."""
        outputs = self._attempt.outputs(self._returned)
        found = {name: to_numpy(array).copy() for name, array in outputs.items()}
        if not all(has_bits(array, found[name]) for name, array in self._outputs().items()):
            self._judge(found)

    def _draw(self, count: int) -> list[ElementChange]:
        """Random changes to be applied one after the other; none without inputs of two elements or floats."""
        names, found = list(self._words), list[ElementChange]()
        values: dict[tuple[str, int], int] = {}
        for number in self._rng.integers(0, max(len(names), 1), count if names else 0):
            name = names[number]
            words, kind = self._words[name], self._attempt.buffers.inputs[name].dtype.name
            bits = BITS.get(PARTS.get(kind, kind), 0)
            at, *others = self._rng.integers(0, len(words), 1 if bits else 1 + TRIED).tolist()
            if bits:
                found.append(ElementChange(name, at, bits))
                continue
            present = values.get((name, at), words[at])
            others = [(one, values.get((name, one), words[one])) for one in others]
            other, its = next((one for one in others if one[1] != present), others[0])
            values[name, at], values[name, other] = its, present
            found.append(ElementChange(name, at, present ^ its, other))
        return found

    def _draw_out(self, count: int) -> list[tuple[int, int]]:
        return [
            (int(number), int(self._rng.integers(0, len(self._out[number]))))
            for number in self._rng.integers(0, len(self._out), count)
        ]

    def _outputs(self) -> dict[str, Any]:
        """Copies of the outputs of a call on poisoned ones."""
        self._attempt.buffers.poison(0)
        returned = self._call()
        return {name: to_numpy(array).copy() for name, array in self._attempt.outputs(returned).items()}

    def _outputs_after(self, change: ElementChange, most: int, *, spoil: bool) -> dict[str, Any]:
        """Copies of the outputs of a call on a changed input, right after up to `most` calls on the previous one."""
        call, calls = self._call, int(self._rng.integers(most // 2 if most > MOST_BEFORE else 1, most + 1))
        place, at, twin, other, bits = change.places(self._words)
        number, out_at = self._draw_out(1)[0] if spoil and self._out else (0, 0)
        out = self._out[number] if spoil and self._out else memoryview(bytearray(1))
        for _ in range(calls):
            call()
        place[at] ^= bits
        twin[other] ^= bits
        out[out_at] = GARBAGE
        returned = call()
        return {name: to_numpy(array).copy() for name, array in self._attempt.outputs(returned).items()}

    def _judge(self, outputs: Mapping[str, Any]) -> None:
        """Raise WrongError if outputs are wrong for the present inputs."""
        attempt = self._attempt
        expected = expect(attempt.case, Inputs(on_host(attempt.buffers.inputs)))
        found = check(outputs, expected, attempt.kernel.relaxed)
        if not found.ok:
            reason = f"{found.reason} (in a call right after another one)"
            raise WrongError(reason, found)


def _as_bytes(array: Any) -> memoryview:
    """The bytes of an array whose memory is contiguous in some order of its axes."""
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    return memoryview(flat.view(np.uint8))


def _as_words(array: Any) -> memoryview:
    """The words of such an array: its elements, or halves of complex numbers."""
    width = min(array.itemsize, WORD)
    return memoryview(np.asarray(_as_bytes(array)).view(f"u{width}"))
