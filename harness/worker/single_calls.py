"""Calls timed one by one: those on changed inputs must not take longer than those on unchanged ones."""

from __future__ import annotations

from time import perf_counter, perf_counter_ns, process_time_ns, sleep

from opgauge.harness.result.result import Measurement
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker import protocol
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.idle import check_idle
from opgauge.harness.worker.phases import Phases
from opgauge.harness.worker.succession import Succession
from opgauge.ops import Bound

SINGLE_S, LEAST_SINGLE, MOST_SINGLE, PAIRED_SINGLE = 0.02, 4, 200, 40
"""Single calls: seconds of them, least and largest number, and number of those compared with unchanged inputs."""
MOST_DEARER, LEAST_DEARER_NS = 1.6, 2_000
"""Largest ratio of a call on changed inputs to one on unchanged inputs, and least difference in ns."""
MOST_SLOWER, SLACK_NS, THREADS_SLACK_NS = 8.0, 50_000, 100_000_000
"""Largest ratio of a single call to one of many in a row, and least difference in ns, for caches and idle threads."""
MANY_THREADS = 1.3
"""Processor time per wall time above which a kernel uses several threads."""
THREADS_NS = 5_000
"""Time of a call above which it may use several threads."""
PAUSE_S = 0.001
"""Pause before a single call that may use several threads, so that all of them are asleep.

A call whose threads are still awake takes half as long.
"""
ROUNDS = 3
"""Number of times that a difference must be measured before it counts."""
JUDGED = 2
"""Calls on fresh values of each round whose outputs are judged."""
LONG_NS = 50_000_000
"""Time of a call above which only samples are compared, unless they differ."""
LEAST_SAMPLES, PAIRS = 2, 3
"""Samples of each kind that are compared, and pairs of calls that confirm a difference."""


def check_beside(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement, phases: Phases) -> None:
    """Check calls beside the samples: right after each other and one by one, and threads between calls.

    Raises WrongError. repeated: the kernel's samples.
    """
    phases.begin(protocol.SUCCESSION)
    check_succession(audit, attempt, call, repeated)
    phases.begin(protocol.IDLE)
    check_idle(audit, attempt)
    phases.begin(protocol.SINGLE_CALLS)
    check_single_calls(audit, attempt, call, repeated)


def check_succession(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement) -> None:
    """Compare outputs of calls right after each other; raises WrongError. repeated: the kernel's samples."""
    if attempt.kernel.key.backend != "cpu" or repeated.calls_per_sample == 1:
        return
    succession = Succession(attempt, call, audit.rng)
    try:
        succession.check_repeats()
        if audit.can_freshen:
            succession.check_outputs()
    finally:
        audit.changes.restore()


def check_single_calls(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement) -> None:
    """Time calls of one sample each; raises WrongError if calls on unchanged inputs do less than others.

    Calls on changed inputs alternate with calls on unchanged inputs and outputs, after the same amount of other
    work: caches and branch predictors are alike. repeated: the kernel's samples, between whose calls nothing
    changes and little time passes.
    """
    if attempt.kernel.key.backend != "cpu":
        return
    if repeated.calls_per_sample == 1:
        _compare_samples(audit, call, repeated)
        return
    if audit.can_freshen:
        try:
            Succession(attempt, call, audit.rng).check_times(repeated.calls_per_sample, repeated.median_ns)
        finally:
            audit.changes.restore()
    usual_ns = repeated.median_ns
    busy_ns = sum(repeated.cpu_ns) / max(len(repeated.cpu_ns), 1)
    slack_ns = THREADS_SLACK_NS if busy_ns > MANY_THREADS * usual_ns else SLACK_NS
    pause_s = PAUSE_S if usual_ns > THREADS_NS else 0.0
    for _ in range(ROUNDS):
        changed_ns, unchanged_ns = _time_single_calls(audit, call, pause_s)
        if changed_ns > MOST_DEARER * unchanged_ns + LEAST_DEARER_NS:
            changed, unchanged = time_text(changed_ns), time_text(unchanged_ns)
            reason = f"a call takes {changed} on changed inputs and {unchanged} on unchanged ones"
            continue
        if attempt.kernel.arrays == "torch" or changed_ns <= MOST_SLOWER * usual_ns + slack_ns:
            return
        reason = f"a call takes {time_text(changed_ns)} by itself and {time_text(usual_ns)} right after another one"
    reason += ": it does not repeat its work"
    raise WrongError(reason)


def _time_single_calls(audit: Audit, call: Bound, pause_s: float) -> tuple[float, float]:
    """Least times in ns of single calls on changed inputs, the first of which are checked, and on unchanged ones."""
    changed: list[int] = []
    unchanged: list[int] = []
    end = perf_counter() + SINGLE_S
    while len(changed) < LEAST_SINGLE or (perf_counter() < end and len(changed) < MOST_SINGLE):
        audit.change(whole=True, fresh=True)
        sleep(pause_s)
        begun = perf_counter_ns()
        returned = call()
        changed.append(perf_counter_ns() - begun)
        audit.after(returned, judged=len(changed) <= JUDGED)
        if len(changed) > PAIRED_SINGLE:
            continue
        returned = call()
        audit.disturb(returned, fresh=True)
        sleep(pause_s)
        begun = perf_counter_ns()
        call()
        unchanged.append(perf_counter_ns() - begun)
    return float(min(changed)), float(min(unchanged))


def _compare_samples(audit: Audit, call: Bound, repeated: Measurement) -> None:
    """Compare samples of one call on inputs and outputs that changed as a whole with those that changed in parts.

    The comparison uses CPU time, so that other processes do not count.
    """
    thorough, usual = audit.thorough_ns, audit.usual_ns
    if min(len(thorough), len(usual)) >= LEAST_SAMPLES:
        if min(thorough) <= MOST_DEARER * min(usual) + LEAST_DEARER_NS:
            return
    elif repeated.median_ns > LONG_NS or not audit.can_freshen:
        return
    for _ in range(ROUNDS):
        pairs = [(_time_call(audit, call, whole=True), _time_call(audit, call, whole=False)) for _ in range(PAIRS)]
        thorough_ns, usual_ns = (float(min(times)) for times in zip(*pairs, strict=True))
        if thorough_ns <= MOST_DEARER * usual_ns + LEAST_DEARER_NS:
            return
    reason = (
        f"a call takes {time_text(thorough_ns)} of CPU time where all inputs and outputs have changed and "
        f"{time_text(usual_ns)} where parts have: it does not repeat its work"
    )
    raise WrongError(reason)


def _time_call(audit: Audit, call: Bound, *, whole: bool) -> int:
    """CPU time in ns of a call after a change of everything, or of parts; its outputs are not judged."""
    audit.change(whole=whole, fresh=whole)
    begun = process_time_ns()
    returned = call()
    took_ns = process_time_ns() - begun
    audit.after(returned, judged=False)
    return took_ns
