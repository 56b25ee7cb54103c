"""Successive calls timed one by one: a kernel that leaves out the work of some has times of two kinds.

Nothing changes between these calls, so that a kernel that works upon every change leaves out as many as in a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

from opgauge.harness.measure.cpu import switches_of_process
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
LEAST_SHARE = 0.02
"""Least share of such calls in a round."""
ROUNDS = 3
"""Rounds all of which must have such calls: of 453 honest kernels beside busy processes one had them in one round."""


def check_evenness(call: Bound, usual_ns: float) -> None:
    """Time successive calls; raises WrongError if some take much less time than others. usual_ns: of a call."""
    if usual_ns > LONG_NS:
        return
    for _ in range(ROUNDS):
        windows = _time_windows(call)
        times = [time for window in windows for time in window]
        short = _shorter(windows)
        if len(short) <= LEAST_SHARE * len(times):
            return
    reason = (
        f"{len(short)} of {len(times)} calls in a row take about {time_text(median(short))}, "
        f"the others {time_text(median(times))}: it does not repeat its work"
    )
    raise WrongError(reason)


def _time_windows(call: Bound) -> list[list[int]]:
    """Times in ns of successive calls, by window; without windows during which another process took a CPU."""
    found, begun = list[list[int]](), perf_counter_ns()
    while len(found) < WINDOWS:
        switches, marks = switches_of_process(), [perf_counter_ns()]
        note = marks.append
        for _ in range(WINDOW):
            call()
            note(perf_counter_ns())
        if switches_of_process() == switches:
            found.append([after - before for before, after in pairwise(marks)])
        if marks[-1] - begun > (ROUND_NS if len(found) >= LEAST_WINDOWS else MOST_ROUND_NS):
            break
    return found


def _shorter(windows: Sequence[Sequence[int]]) -> list[int]:
    """Times of calls that do less than the others."""
    usual = median(map(median, windows)) if windows else 0
    return [
        time
        for window in windows
        for time in window
        if time <= max(MOST_SHORTER * median(window), MUCH_SHORTER * usual)
        and time <= max(median(window), usual) - LEAST_SHORTER_NS
    ]
