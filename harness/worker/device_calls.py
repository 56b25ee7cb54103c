"""Calls on a GPU beside the samples: in the order of the timed stream, right after changes, and on fresh values.

Samples begin after inputs have changed and the cache is flushed. A kernel that works on another stream could use that
time, one that remembers results could be cheap on known values, and one that skips repeated work would have no hot
time. Each check costs a few milliseconds per trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from time import perf_counter_ns
from typing import Any, NamedTuple

from opgauge.harness.measure.cuda import CudaTimer
from opgauge.harness.result.result import Measurement
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import WHEN, Audit
from opgauge.harness.worker.bits import has_bits, root_of
from opgauge.harness.worker.buffers import copy_beside
from opgauge.harness.worker.emphasis import write_inputs
from opgauge.harness.worker.input_changes import InputChange
from opgauge.ops import Bound

LEAST_HOLD_NS, MOST_HOLD_NS = 2_000_000, 32_000_000
"""Nanoseconds for which the stream is occupied before a call."""
PROBE = 512
"""Elements of each part of an output that is copied when the timed stream has ended."""
MOST_DEARER, LEAST_DEARER_NS = 1.5, 1_500
"""Largest ratio of a hot call after a change to one without, and least difference in ns."""
CALLS, REPLAYS = 6, 4
"""Most calls of a graph, and replays of each graph; of long calls two."""
LEAST_SAMPLES, MOST_SAMPLES = 2, 10
"""Samples in order and on fresh values, one of long calls; and most before a difference counts."""
LONG_NS, LONGEST_NS = 300_000, 5_000_000
"""Time of a call from which few are made, and time above which none are repeated."""
MOST_COLD_DEARER, LEAST_COLD_DEARER_NS = 1.25, 500
"""Largest ratio of such a sample to a usual one, and least difference in ns.

On an H200 the lesser of two samples of 456 honest results was at most 1.23 times the usual time.
"""
IN_ORDER = "in a call whose inputs changed right before it on the timed stream: it does not wait for that stream"
"""When the check of the order found a fault, for messages."""


def check_device_calls(audit: Audit, attempt: Attempt, call: Bound, measured: Measurement) -> None:
    """Check calls of a kernel on a GPU, all of whose samples have been taken; raises WrongError.

    Sets `audit.is_hot_wrong` if a captured call leaves other outputs than one that is not captured.
    """
    timer = attempt.timer
    if not isinstance(timer, CudaTimer):
        return
    begun = perf_counter_ns()
    attempt.blamed(call)
    wait_ns = min(2 * (perf_counter_ns() - begun) + LEAST_HOLD_NS, MOST_HOLD_NS)
    timer.rest()
    check_order(audit, attempt, call, wait_ns, measured)
    check_fresh(audit, attempt, call, wait_ns, measured)
    if measured.hot_ns is not None and measured.median_ns < LONGEST_NS:
        check_repeats(audit, attempt, call, timer, measured.hot_ns)


def check_order(audit: Audit, attempt: Attempt, call: Bound, wait_ns: int, measured: Measurement) -> None:
    """Change inputs on the occupied stream, then call, without waiting; raises WrongError.

    Work that does not wait for the timed stream uses earlier inputs, or its outputs are poisoned afterwards. Work for
    which that stream does not wait is unfinished when the stream has ended. Work that others do in advance takes time.
    """
    timer: Any = attempt.timer
    queue, times = timer.cold_queue(), []
    seen: list[dict[str, Any]] = [{}, {}]

    def change() -> None:
        audit.change(whole=audit.is_small, fresh=False)

    def look(returned: Any) -> None:
        outputs, poisoned = attempt.outputs(returned), {} if audit.is_small else attempt.buffers.poisoned
        places = {name: [part.start for part in poisoned.get(name, ())] for name in outputs}
        seen[:] = outputs, _probed(outputs, places), places

    for number in count(1):
        sample = queue.sample(lambda: attempt.blamed(call), 0, before=change, after=look, wait_ns=wait_ns)
        timer.rest()
        outputs, ended, places = seen
        late = [name for name, found in _probed(outputs, places).items() if not has_bits(found, ended[name])]
        if late:
            reason = f"{late[0]} was still written after the timed stream had ended: it works on another stream"
            raise WrongError(reason)
        try:
            audit.after(sample.returned)
        except WrongError as error:
            reason = str(error).replace(WHEN, IN_ORDER)
            raise WrongError(reason, error.check) from error
        times += [sample.elapsed_ns] if sample.blocked else []
        if number >= _least(measured) and min(times, default=0.0) <= _most_ns(measured.median_ns):
            return
        if number == MOST_SAMPLES:
            break
    ordered, usual = time_text(min(times)), time_text(measured.median_ns)
    reason = (
        f"a call takes {ordered} right behind a change on its stream, and {usual} where other streams have time before"
    )
    raise WrongError(reason)


def _probed(outputs: Mapping[str, Any], places: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Copies on the device of parts of outputs, the last elements first; of arrays on the host none."""
    found = {}
    for name, array in outputs.items():
        if root_of(array) == "cupy" and array.size:
            flat = array.reshape(-1)
            for start in (max(array.size - PROBE, 0), 0, *places[name]):
                found[f"{name}, from {start} on,"] = flat[start : start + PROBE].copy()
    return found


def check_fresh(audit: Audit, attempt: Attempt, call: Bound, wait_ns: int, measured: Measurement) -> None:
    """Compare samples on values that inputs never had with those on known values; raises WrongError if dearer."""
    if not audit.can_freshen:
        return
    timer: Any = attempt.timer
    queue = timer.cold_queue()
    fresh_ns: list[float] = []
    known_ns = [measured.median_ns]

    def sample(times: list[float], *, fresh: bool) -> None:
        audit.change(whole=True, fresh=fresh)
        if measured.median_ns < LONG_NS:
            _call_in_between(attempt, call)
        found = queue.sample(lambda: attempt.blamed(call), 0, wait_ns=wait_ns // 2)
        audit.after(found.returned, judged=False)
        times.extend([found.elapsed_ns] if found.blocked else [])

    for number in count(1):
        sample(fresh_ns, fresh=True)
        if number >= _least(measured) and min(fresh_ns, default=0.0) <= _most_ns(min(known_ns)):
            return
        if number == MOST_SAMPLES:
            break
        sample(known_ns, fresh=False)
    fresh_text, known_text = time_text(min(fresh_ns)), time_text(min(known_ns))
    reason = f"a call takes {fresh_text} on values that the inputs never had and {known_text} on others"
    reason += ": it remembers results"
    raise WrongError(reason)


def _call_in_between(attempt: Attempt, call: Bound) -> None:
    """Call on the case's own values, then restore those that inputs have now.

    Fresh values are made by several kernels, behind which the code of the next one is in no cache: a sum by torch then
    takes 9.7 us on an H200 in place of 7.4.
    """
    inputs, untouched = attempt.buffers.inputs, attempt.buffers.untouched
    changed = {name: copy_beside(array) for name, array in inputs.items()}
    write_inputs(inputs, None, [], untouched)
    attempt.blamed(call)
    write_inputs(inputs, None, [], changed)
    attempt.buffers.poison(0)


def _least(measured: Measurement) -> int:
    """Number of samples without a difference."""
    return LEAST_SAMPLES if measured.median_ns < LONG_NS else 1


def _most_ns(usual_ns: float) -> float:
    """Longest time of a cold call that does no more work than another one."""
    return MOST_COLD_DEARER * usual_ns + LEAST_COLD_DEARER_NS


def check_repeats(audit: Audit, attempt: Attempt, call: Bound, timer: CudaTimer, hot_ns: float) -> None:
    """Compare a graph in which a change precedes each call with one of all changes first; raises WrongError.

    Both have the same launches. A kernel that skips what it has done takes longer in the former, or leaves other
    outputs. An honest one takes longer, too, where the changes take its outputs out of the cache: it counts as dearer
    if a third graph, in which copies of the inputs change before each call, takes less as well.
    """
    most_ns = (MOST_DEARER - 1) * max(hot_ns, 0.0) + LEAST_DEARER_NS
    audit.change(whole=audit.is_small, fresh=False)
    try:
        found = _replay(audit, attempt, call, timer, CALLS if hot_ns < LONG_NS else 2, most_ns)
    finally:
        audit.undo()
    if found is None:
        return
    audit.is_hot_wrong = not found.is_first_right
    if found.is_first_right and not found.is_each_right:
        reason = "a call repeats its result, though its inputs have changed since the last one"
        raise WrongError(reason)
    if found.is_first_right and found.more_ns > most_ns:
        more = time_text(found.more_ns)
        reason = f"a call takes {more} longer after a change than without: it does not repeat its work"
        raise WrongError(reason)


class ReplayedCalls(NamedTuple):
    """Whether outputs are right with a change before each call, and with all before the first; ns more per call."""

    is_each_right: bool
    is_first_right: bool
    more_ns: float


class ChangedCalls:
    """Calls of a kernel and changes of its inputs, in several orders with the same launches.

    Each order begins and ends with the inputs of the audit's pending change. returned: value of the last call.
    """

    def __init__(self, audit: Audit, attempt: Attempt, call: Bound, calls: int, last: InputChange) -> None:
        """last: the audit's pending change."""
        self.returned: Any = None
        self._changes, self._buffers, self._rng, self._call = audit.changes, attempt.buffers, audit.rng, call
        self._copies: dict[str, Any] = {}
        others = [self._changes.choose(whole=last.whole) for _ in range(calls - 1)]
        scaled = [replace(one, is_scaled=one.is_scaled and (calls - at) % 2 == 1) for at, one in enumerate(others)]
        self._steps = list(pairwise([last, *scaled, last]))

    def each(self) -> None:
        """A change before each call."""
        for step in self._steps:
            self._change(*step)
            self.returned = self._call()

    def all_first(self) -> None:
        """All changes before the first call."""
        for step in self._steps:
            self._change(*step)
        for _ in self._steps:
            self.returned = self._call()

    def copy_inputs(self) -> None:
        """Make the copies that `beside` changes."""
        self._copies = {name: copy_beside(array) for name, array in self._buffers.inputs.items()}

    def beside(self) -> None:
        """A change of the copies before each call, of the outputs before the first."""
        for _ in self._steps:
            self._buffers.poison_parts(self._rng)
        for step in self._steps:
            for one in step:
                self._changes.apply(one, self._copies, is_input=True)
            self.returned = self._call()

    def _change(self, before: InputChange, after: InputChange) -> None:
        self._changes.undo(before)
        self._changes.apply(after, self._buffers.inputs, is_input=True)
        self._buffers.poison_parts(self._rng)


def _replay(
    audit: Audit, attempt: Attempt, call: Bound, timer: CudaTimer, calls: int, most_ns: float
) -> ReplayedCalls | None:
    """Compare the orders by the least times of their graphs; None if calls cannot be captured.

    Copies are changed only if calls take more than `most_ns` longer with a change before each.
    """
    if audit.pending is None:
        return None
    orders, found = ChangedCalls(audit, attempt, call, calls, audit.pending), []
    for order in (orders.each, orders.all_first):
        took_ns = _least_ns(timer, order, calls)
        if took_ns is None:
            return None
        found.append((took_ns, audit.agrees(orders.returned)))
    (each_ns, is_each_right), (first_ns, is_first_right) = found
    if each_ns - first_ns > most_ns:
        orders.copy_inputs()
        first_ns = max(first_ns, _least_ns(timer, orders.beside, calls) or 0.0)
    return ReplayedCalls(is_each_right, is_first_right, each_ns - first_ns)


def _least_ns(timer: CudaTimer, work: Callable[[], None], calls: int) -> float | None:
    """Least time per call of a graph's replays; None if it cannot be captured."""
    replay = timer.captured(work)
    if replay is None:
        return None
    return min(replay() for _ in range(REPLAYS if calls > LEAST_SAMPLES else 2)) / calls
