"""Calls timed one by one: those on changed inputs must not take longer than those on unchanged ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import perf_counter, perf_counter_ns, sleep

import numpy as np

from opgauge.harness.measure import Limits
from opgauge.harness.measure.cpu import no_garbage_collection
from opgauge.harness.result.result import Measurement
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker import protocol
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.call_time import CallTime, Clocks
from opgauge.harness.worker.evenness import check_evenness
from opgauge.harness.worker.freed_memory import freed_memory_kept
from opgauge.harness.worker.phases import Phases
from opgauge.harness.worker.succession import Succession
from opgauge.ops import Bound

LEAST_SINGLE, SINGLE_S, SURE_SINGLE, MOST_SINGLE, PAIRED_SINGLE = 2, 0.02, 8, 200, 40
"""Single calls: least number; seconds, least and largest number before a difference counts; number of pairs."""
MOST_DEARER, LEAST_DEARER_NS = 1.6, 2_000
"""Largest ratio of a call on changed inputs to one on unchanged inputs, and least difference in ns."""
MOST_SLOWER, SLACK_NS, THREADS_SLACK_NS = 8.0, 50_000, 100_000_000
"""Largest ratio of a single call to one of many in a row, and least difference in ns, for caches and idle threads."""
THREADS_NS = 5_000
"""Time of a call above which it may use several threads."""
PAUSE_S = 0.001
"""Pause before a single call that may use several threads, so that all of them are asleep.

A call whose threads are still awake takes half as long.
"""
ROUNDS = 3
"""Number of times that a difference must be measured before it counts."""
JUDGED = 2
"""Calls on fresh values of each round whose outputs are judged, besides those that are fast."""
LOOPS = 8
"""Samples, and loops of as many calls, that confirm a difference where no other process takes a CPU."""
LEAST_LOOPS, SLOWER_HOST = 4, 2.5
"""Loops, each beside a new sample, from which on new samples count; largest ratio by which a host became slower since
the others: another virtual machine on the same core, or a lower clock, slows calls down without a switch.
"""
LONG_NS = 50_000_000
"""CPU time of a call above which only samples are compared, unless they differ."""
LEAST_SAMPLES, LEAST_PAIRS, PAIRS = 3, 2, 30
"""Samples after partial changes that are compared; least and most pairs of calls or loops that confirm a difference.

Beside busy neighbours the least of nine was 1.62 times as long for an honest kernel of two threads.
"""
RARE = 4
"""Calls after partial changes per one that may be faster by chance."""
MOSTLY = 2 / 3
"""Share of calls beside no other process from which on wall time is enough."""


def check_beside(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement, phases: Phases) -> None:
    """Check calls beside the samples, right after each other and one by one.

    Raises WrongError. repeated: the kernel's samples, all of which have been taken: a kernel could begin to skip work
    after the checks. The state of the process is that of a sample.
    """
    with no_garbage_collection(collect_first=False), np.errstate(all="ignore"):
        phases.begin(protocol.SUCCESSION)
        check_succession(audit, attempt, call, repeated)
        if attempt.kernel.key.backend != "cpu":
            from opgauge.harness.worker.device_calls import check_device_calls

            check_device_calls(audit, attempt, call, repeated)
        phases.begin(protocol.SINGLE_CALLS)
        if repeated.calls_per_sample > 1:
            check_loops(audit, attempt, call, repeated)
            check_single_calls(audit, attempt, call, repeated)
            if attempt.kernel.key.backend == "cpu":
                check_evenness(call, repeated.median_ns)
        else:
            check_samples(audit, attempt, call, repeated)
        if {*np.geterr().values()} != {"ignore"}:
            reason = "changed NumPy's error handling"
            raise WrongError(reason)


def check_succession(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement) -> None:
    """Compare outputs of calls right after each other; raises WrongError. repeated: the kernel's samples."""
    if attempt.kernel.key.backend != "cpu" or repeated.calls_per_sample == 1:
        return
    succession = Succession(attempt, call, audit.rng)
    try:
        succession.check_written()
        succession.check_repeats()
        if audit.can_freshen:
            succession.check_outputs(repeated.calls_per_sample)
    finally:
        audit.changes.restore()


def check_loops(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement) -> None:
    """Compare samples with as many calls elsewhere; raises WrongError if those take longer: it detects samples.

    More time passes between those calls than between calls on changed inputs (see `succession`): a kernel that skips
    work only where less passes would skip none of them. Loops that take longer than the samples were may be those of a
    host that has become slower, and are compared with new samples. Threads that wait for one whose CPU is taken take
    any multiple of their time, and are compared with new samples alone.
    """
    if attempt.kernel.key.backend != "cpu":
        return
    calls = repeated.calls_per_sample
    limits = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0, calls=calls)
    cpu_ns, wall_ns = min(repeated.cpu_ns), repeated.median_ns
    earlier, loops = [CallTime(int(cpu_ns), int(wall_ns))], list[CallTime]()
    samples = [CallTime(int(SLOWER_HOST * cpu_ns), int(SLOWER_HOST * wall_ns))]
    spare = memoryview(bytearray(1))
    steps = ((spare, 0, spare, 0, 1, spare, 0),)
    for _ in range(PAIRS):
        begun = Clocks.now(with_waits=True)
        left = calls
        while left:  # without an iterator, which a kernel could find among all objects and exhaust
            for place, at, twin, other, bits, out, out_at in steps:
                place[at] ^= bits
                twin[other] ^= bits
                place[at] ^= bits
                twin[other] ^= bits
                out[out_at] ^= bits
            call()
            left -= 1
        loops.append(begun.passed().of_each(calls))
        if not is_dearer(loops, earlier):
            return
        found = attempt.measure(call, limits, audit).measurement
        samples.append(CallTime(int(found.cpu_ns[0]), int(found.median_ns), found.contended > 0))
        waits = all(one.disturbed for one in loops) and any(one.uses_several_threads for one in (*earlier, *loops))
        if len(loops) >= LEAST_LOOPS and not is_dearer(loops, samples[1:] if waits else samples):
            return
        if sum(not one.disturbed for one in loops) >= LOOPS:
            break
    sampled, looped = (time_text(min(one.wall_ns for one in times)) for times in ([*earlier, *samples], loops))
    reason = f"a call takes {sampled} in a sample and {looped} in another loop: it does not repeat its work"
    raise WrongError(reason)


def check_single_calls(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement) -> None:
    """Time calls of one sample each; raises WrongError if calls on unchanged inputs do less than others.

    Calls on changed inputs alternate with calls on unchanged inputs and outputs, after the same amount of other
    work: caches and branch predictors are alike. repeated: the kernel's samples, between whose calls nothing
    changes and little time passes.
    """
    if attempt.kernel.key.backend != "cpu":
        return
    if audit.can_freshen:
        try:
            Succession(attempt, call, audit.rng).check_times(repeated.calls_per_sample, repeated.median_ns)
        finally:
            audit.changes.restore()
    usual_ns = repeated.median_ns
    busy_ns = sum(repeated.cpu_ns) / max(len(repeated.cpu_ns), 1)
    on_several = CallTime(int(busy_ns), int(usual_ns)).uses_several_threads
    slack_ns = THREADS_SLACK_NS if on_several else SLACK_NS
    pause_s = PAUSE_S if usual_ns > THREADS_NS else 0.0
    most_ns = inf if attempt.kernel.arrays == "torch" else MOST_SLOWER * usual_ns + slack_ns
    for _ in range(ROUNDS):
        changed_ns, unchanged_ns = _time_single_calls(audit, call, pause_s, most_ns)
        if changed_ns > _most_ns(unchanged_ns):
            changed, unchanged = time_text(changed_ns), time_text(unchanged_ns)
            reason = f"a call takes {changed} on changed inputs and {unchanged} on unchanged ones"
            continue
        if changed_ns <= most_ns:
            return
        reason = f"a call takes {time_text(changed_ns)} by itself and {time_text(usual_ns)} right after another one"
    reason += ": it does not repeat its work"
    raise WrongError(reason)


def _time_single_calls(audit: Audit, call: Bound, pause_s: float, most_ns: float) -> tuple[float, float]:
    """Least times in ns of single calls on changed inputs, the first of which are checked, and on unchanged ones.

    After the least number of calls it ends as soon as those on changed inputs take neither longer than the others nor
    more than `most_ns`.
    """
    changed: list[int] = []
    unchanged: list[int] = []
    end = perf_counter() + SINGLE_S
    while len(changed) < MOST_SINGLE and (len(changed) < SURE_SINGLE or perf_counter() < end):
        audit.change(whole=True, fresh=True)
        if audit.is_change_known:
            audit.after(call())
            continue
        sleep(pause_s)
        begun = perf_counter_ns()
        returned = call()
        changed.append(perf_counter_ns() - begun)
        decides = bool(unchanged) and changed[-1] <= min(_most_ns(min(unchanged)), most_ns)
        audit.after(returned, judged=decides or len(changed) <= JUDGED, surely=decides)
        if len(changed) <= PAIRED_SINGLE:
            returned = call()
            audit.disturb(returned, fresh=True)
            sleep(pause_s)
            begun = perf_counter_ns()
            call()
            unchanged.append(perf_counter_ns() - begun)
        if len(changed) >= LEAST_SINGLE and min(changed) <= min(_most_ns(min(unchanged)), most_ns):
            break
    return float(min(changed)), float(min(unchanged))


def _most_ns(other_ns: float) -> float:
    """Longest time in ns of a call that is not dearer than another one."""
    return MOST_DEARER * other_ns + LEAST_DEARER_NS


def check_samples(audit: Audit, attempt: Attempt, call: Bound, repeated: Measurement) -> None:
    """Compare samples of one call on inputs and outputs that changed as a whole with those that changed in parts.

    Raises WrongError if the former are dearer, but for one at most, whose values a kernel may have known by chance. A
    few of the latter may be faster by chance, as where a large new output gets large pages; all of them, where what is
    freed before them stays with the process alone, so that they must be dearer where it always does, too. repeated:
    some samples.
    """
    if attempt.kernel.key.backend != "cpu" or repeated.calls_per_sample > 1:
        return
    for _ in range(2 if audit.can_freshen else 0):  # of the first values, a few elements may decide
        if audit.fresh and not audit.changes.is_sampling_unnoticed:
            break
        audit.thorough += _time_thorough(audit, call, ())
    if audit.thorough and len(audit.usual) >= LEAST_SAMPLES:
        if not is_dearer(audit.thorough, audit.usual):
            return
    elif min(repeated.cpu_ns, default=0.0) > LONG_NS or not audit.can_freshen:
        return
    found = _dearer_calls(audit, call)
    if found is not None:
        with freed_memory_kept():
            found = _dearer_calls(audit, call)
    if found is None:
        return
    whole, parts = (time_text(min(one.wall_ns for one in times)) for times in found)
    reason = (
        f"a call takes {whole} where all inputs and outputs have changed and {parts} where parts have: "
        "it does not repeat its work"
    )
    raise WrongError(reason)


def _dearer_calls(audit: Audit, call: Bound) -> tuple[list[CallTime], list[CallTime]] | None:
    """Calls after changes of everything, and after changes of parts, if the former are dearer."""
    thorough: list[CallTime] = []
    usual: list[CallTime] = []
    for _ in range(PAIRS):
        thorough += _time_thorough(audit, call, usual)
        # a kernel that works by what has changed since the last call would work more; and caches shall be alike
        audit.disturb(call(), fresh=True)
        usual.append(_time_call(audit, call))
        for times in (thorough, usual):
            times.sort(key=lambda one: one.wall_ns)
        if len(thorough) >= LEAST_PAIRS and not is_dearer(thorough[1:], usual[len(usual) // RARE :]):
            return None
    return thorough, usual


def is_dearer(thorough: Sequence[CallTime], usual: Sequence[CallTime]) -> bool:
    """Whether calls of one kind do more work than those of the other.

    Wall time decides where other processes left the calls alone, since a kernel could burn CPU time. CPU time decides
    beside other processes; by itself it would not do: two threads that share a core take twice that of one, and one
    that waits for another may do so in a loop. Calls on one thread, as a kernel may choose beside other processes, have
    longer wall times than those on several.
    """
    on_several = any(one.uses_several_threads for one in usual)
    comparable = [one for one in thorough if one.uses_several_threads or not on_several]
    quiet = [[one.wall_ns for one in times if not one.disturbed] for times in (comparable, usual)]
    if all(quiet):
        if min(quiet[0]) <= _most_ns(min(quiet[1])):
            return False
        if len(quiet[0]) >= MOSTLY * len(thorough):
            return True
    may_spin = all(one.disturbed for one in thorough) and any(one.uses_several_threads for one in thorough)
    if may_spin and min(one.wall_ns for one in thorough) <= _most_ns(min(one.wall_ns for one in usual)):
        return False
    return min(one.cpu_ns for one in thorough) > _most_ns(min(one.cpu_ns for one in usual))


def _time_thorough(audit: Audit, call: Bound, usual: Sequence[CallTime]) -> list[CallTime]:
    """Time of a call after a change of everything; its outputs are judged if it is as fast as usual.

    None if the values are known. As before the others, memory that another call returned has just become free: where
    that was of large pages, a large new output takes a sixth of the time.
    """
    returned = call()
    audit.change(whole=True, fresh=True)
    is_known = audit.is_change_known
    del returned
    sleep(PAUSE_S)
    begun = Clocks.now(with_waits=True)
    returned = call()
    took = begun.passed()
    decides = not usual or not is_dearer([took], usual)
    audit.after(returned, judged=decides, surely=decides)
    return [] if is_known else [took]


def _time_call(audit: Audit, call: Bound) -> CallTime:
    """Time of a call after a change of parts; its outputs are not judged."""
    audit.change(whole=False, fresh=False)
    sleep(PAUSE_S)
    begun = Clocks.now(with_waits=True)
    returned = call()
    took = begun.passed()
    audit.after(returned, judged=False)
    return took
