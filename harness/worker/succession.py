"""Succession of calls, between which a byte or two of the inputs and outputs change.

Between samples more happens, and more time passes: a kernel could detect that, work only then, and skip the other calls
of a sample. Writing a byte takes less time than the loop of a sample takes per call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from opgauge.harness.measure.cpu import switches_of_process
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.bits import has_bits
from opgauge.harness.worker.inputs import Inputs, on_host
from opgauge.harness.worker.verify import check, expect
from opgauge.ops import Bound
from opgauge.ops._core.backend import to_numpy

BITS = {"float16": (1, 0x02), "bfloat16": (0, 0x40), "float32": (2, 0x40), "float64": (6, 0x08)}
"""Byte of an element and highest bit of the mantissa in it, by dtype: a change by a quarter to a half."""
PARTS = {"complex64": "float32", "complex128": "float64"}
"""Dtype of the parts of complex numbers."""
REPEATS_NS, MOST_REPEATS = 10_000_000, 400
"""Calls on the same inputs whose outputs are compared: CPU time of them, and their number."""
TRIES, LEAST_TRIES, TRIES_NS, MOST_BEFORE = 12, 2, 5_000_000, 20
"""Changes whose outputs are compared: most and least of them, and CPU time; and most calls right before each.

All are made if one finds outputs of earlier inputs.
"""
STALE = 3
"""Number of times that outputs of earlier inputs must be found before they count."""
LEAST_SEQUENCES, SEQUENCES, SEQUENCE_NS, MOST_CALLS = 2, 5, 300_000, 400
"""Timed sequences of calls of each kind, least that kept their CPU and most; their time in ns, and their most calls."""
MOST_DEARER, LEAST_DEARER_NS = 1.6, 1_000
"""Largest ratio of a call after a change to one without, and least difference in ns."""
ROUNDS = 3
"""Number of times that a difference must be measured before it counts."""
GARBAGE = 0x5A
"""Byte that garbage consists of."""


class Succession:
    """Successive calls of one kernel, on its buffers on the CPU."""

    def __init__(self, attempt: Attempt, call: Bound, rng: np.random.Generator) -> None:
        self._attempt = attempt
        self._call = call
        self._returned: Any = None
        self._rng = rng
        self._bytes: dict[str, memoryview] = {}
        for name, array in attempt.buffers.inputs.items():
            if array.size and PARTS.get(array.dtype.name, array.dtype.name) in BITS:
                self._bytes[name] = _as_bytes(array)
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

    def check_outputs(self) -> None:
        """Change an element between two calls; raises WrongError if the outputs are those of the previous inputs."""
        attempt = self._attempt
        if not (self._bytes and attempt.repeatable and attempt.kernel.deterministic):
            return
        stale, end = 0, process_time_ns() + TRIES_NS
        for number in range(TRIES):
            if number >= LEAST_TRIES and not stale and process_time_ns() > end:
                return
            before = self._outputs()
            (name, at, bit) = self._draw(1)[0]
            place = self._bytes[name]
            place[at] ^= bit
            wanted = self._outputs()
            place[at] ^= bit
            found = self._outputs_after(place, at, bit, spoil=number % 4 == 3)
            if all(has_bits(array, wanted[one]) for one, array in found.items()):
                place[at] ^= bit
                continue
            self._judge(found)
            is_stale = all(has_bits(array, before[one]) for one, array in found.items())
            place[at] ^= bit
            if not is_stale:
                return  # bits differ from call to call, and are valid
            stale += 1
            if stale >= STALE:
                reason = "a call right after another one repeats its result, though an input has changed"
                raise WrongError(reason)

    def check_times(self, calls: int, usual_ns: float) -> None:
        """Time calls that each follow a change; raises WrongError if they take longer than others."""
        calls = int(max(2, min(calls, MOST_CALLS, SEQUENCE_NS // max(usual_ns, 1))))
        spare = {name: memoryview(bytearray(len(place))) for name, place in self._bytes.items()}
        spare_out = [memoryview(bytearray(len(place))) for place in self._out]
        if not self._out:
            return
        for _ in range(ROUNDS):
            same_ns = changed_ns = float("inf")
            undisturbed = 0
            for left in reversed(range(SEQUENCES)):
                number = int(self._rng.integers(-(-calls // 2), calls + 1))
                drawn, spoilt, switches = self._draw(number), self._draw_out(number), switches_of_process()
                same_ns = min(same_ns, self._time(spare, spare_out, drawn, spoilt))
                undisturbed += switches_of_process() == switches
                changed_ns = min(changed_ns, self._time(self._bytes, self._out, drawn, spoilt))
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
        drawn: Sequence[tuple[str, int, int]],
        spoilt: Sequence[tuple[int, int]],
    ) -> float:
        """Time per call in ns; before each a byte of an input and one of an output are written."""
        call = self._call
        places = [(inputs[name], at, bit) for name, at, bit in drawn] or [(memoryview(bytearray(1)), 0, 1)] * len(
            spoilt
        )
        steps = [(*place, outputs[number], at) for place, (number, at) in zip(places, spoilt, strict=True)]
        self._returned = call()
        begun = perf_counter_ns()
        for place, at, bit, out, out_at in steps:
            place[at] ^= bit
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

    def _draw(self, count: int) -> list[tuple[str, int, int]]:
        """Random elements of floating-point inputs: name, byte, and bit to change; empty without any."""
        names = list(self._bytes)
        found = []
        for number in self._rng.integers(0, max(len(names), 1), count if names else 0):
            name = names[number]
            dtype = self._attempt.buffers.inputs[name].dtype
            kind = PARTS.get(dtype.name, dtype.name)
            byte, bit = BITS[kind]
            element = int(self._rng.integers(0, len(self._bytes[name]) // dtype.itemsize))
            found.append((name, element * dtype.itemsize + byte, bit))
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

    def _outputs_after(self, place: memoryview, at: int, bit: int, *, spoil: bool) -> dict[str, Any]:
        """Copies of the outputs of a call on a changed input, right after some calls on the previous one."""
        call, calls = self._call, int(self._rng.integers(1, MOST_BEFORE + 1))
        number, out_at = self._draw_out(1)[0] if spoil and self._out else (0, 0)
        out = self._out[number] if spoil and self._out else memoryview(bytearray(1))
        for _ in range(calls):
            call()
        place[at] ^= bit
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
