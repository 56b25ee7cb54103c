"""Successive calls timed one by one: a kernel that leaves out the work of some has times of two kinds.

Nothing changes between these calls, so that a kernel that works upon every change leaves out as many as in a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

from opgauge.harness.measure.cpu import switches_of_process, waits_of_thread
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.attempt import WrongError
from opgauge.ops import Bound

WINDOW = 16
"""Calls that are compared with each other: so few that the host keeps its speed meanwhile."""
WINDOWS, ROUND_NS = 24, 4_000_000
"""Most windows of a round, and their time in ns; a round has at least one."""
LEAST_WINDOWS, MOST_ROUND_NS = 4, 16_000_000
"""Windows without another process for which a round goes on, and longest time in ns that it does."""
LONG_NS = 1_000_000
"""Time of a call above which none are timed: a sample has one or two of them, which are judged."""
MOST_SHORTER, MUCH_SHORTER, LEAST_SHORTER_NS = 0.5, 0.25, 300
"""Largest share of the median of its window, or of that of all windows, that a call with less work takes; and least
difference in ns.
"""
WAIT_NS = 100_000
"""Time by which a call is longer, at most, that waits for another thread which sleeps, not for one that is awake."""
LEAST_SHARE = 0.02
"""Least share of such calls in a round."""
ROUNDS = 3
"""Rounds all of which must have such calls: of 453 honest kernels beside busy processes one had them in one round."""


@dataclass(frozen=True, slots=True)
class Window:
    """Times of successive calls in ns, and the number of waits of their thread, per call."""

    times: list[int]
    waits: float


def check_evenness(call: Bound, usual_ns: float) -> None:
    """Time successive calls; raises WrongError if some take much less time than others. usual_ns: of a call."""
    if usual_ns > LONG_NS:
        return
    for _ in range(ROUNDS):
        windows = _time_windows(call)
        times = [time for window in windows for time in window.times]
        short = _shorter(windows)
        if len(short) <= LEAST_SHARE * len(times):
            return
    reason = (
        f"{len(short)} of {len(times)} calls in a row take about {time_text(median(short))}, "
        f"the others {time_text(median(times))}: it does not repeat its work"
    )
    raise WrongError(reason)


def _time_windows(call: Bound) -> list[Window]:
    """Windows of successive calls; without those during which another process took a CPU."""
    found, begun = list[Window](), perf_counter_ns()
    while len(found) < WINDOWS:
        switches, waits, marks = switches_of_process(), waits_of_thread(), [perf_counter_ns()]
        note = marks.append
        for _ in range(WINDOW):
            call()
            note(perf_counter_ns())
        if switches_of_process() == switches:
            waited = (waits_of_thread() - waits) / WINDOW
            found.append(Window([after - before for before, after in pairwise(marks)], waited))
        if marks[-1] - begun > (ROUND_NS if len(found) >= LEAST_WINDOWS else MOST_ROUND_NS):
            break
    return found


def _shorter(windows: Sequence[Window]) -> list[int]:
    """Times of calls that do less than the others."""
    medians = [median(window.times) for window in windows]
    usual = median(medians) if windows else 0
    return [
        time
        for window, its in zip(windows, medians, strict=True)
        for time in window.times
        if time <= max(MOST_SHORTER * its, MUCH_SHORTER * usual)
        and time <= max(its, usual) - LEAST_SHORTER_NS - WAIT_NS * window.waits
    ]
