"""Interleaved (round-robin) samples of a case's implementations, so that their ratios are of the same minutes.

A shared host drifts, so the implementations of a case are sampled round-robin in a balanced order, one sample each:
each follows each other one equally often, since a call inherits caches and awake threads from the previous one. All use
the same inputs and outputs: with buffers of their own, of which some fit the last cache, one implementation would keep
its cache lines at the cost of the others, and be twice as fast for a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from math import ceil, sqrt
from typing import TYPE_CHECKING

from opgauge.harness.measure import Limits
from opgauge.harness.measure.series import with_series
from opgauge.harness.result.result import Measurement, Result, Status

if TYPE_CHECKING:
    from opgauge.harness.worker.bench import Bench

TURNS = 12
"""Number of rounds; the first takes this part of the samples, enough to judge by if the worker is lost."""
WARM_AGAIN_S = 0.002
"""Seconds of calls, at least one call, before the sample of a later round: others used caches and cores meanwhile."""
LONG_S = 0.01
"""Duration of a call above which it is not warmed up again. The duration of the call counts, not of the sample.

Samples that exceed the limit by chance would remain cold and slow.
"""
NEAR = 1.25
"""Ratio to the fastest implementation within which the ranking is undecided."""
MEDIAN_ERROR = 0.02
"""Relative standard error below which a median is known."""


def interleave(
    bench: Bench, implementations: Sequence[str], limits: Limits, report: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Sample resident implementations of the current case round-robin, until all have enough samples.

    Each is checked right after its last sample, since the next one writes to the same outputs. report: called with
    the implementation that is sampled next.
    """
    results = [bench.held[name][1] for name in implementations]
    for order in cycle(balanced_orders(len(results))):
        turns = next_turns(results, limits)
        is_last = not any(turns)
        for index in order:
            name, taken = implementations[index], results[index].measurement
            if results[index].status is Status.OK and taken is not None and (turns[index] or is_last):
                report(name)
                results[index] = joined(results[index], bench.sample(name, single(taken, limits), is_last=is_last))
        if is_last:
            break
    return [with_series(result) for result in bench.judged_together(results)]


def first_turn(limits: Limits) -> Limits:
    """Limits of the first round: a share of all."""
    return replace(
        limits,
        budget_s=limits.budget_s / limits.turns,
        min_samples=ceil(limits.min_samples / limits.turns),
        max_samples=ceil(limits.max_samples / limits.turns),
    )


def balanced_orders(count: int) -> tuple[tuple[int, ...], ...]:
    """Orders of `count` items in which each is equally often in each position, and right after each other one.

    A Latin square of Williams 1949; two of them for an odd number.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    square = [tuple((start + step) % count for step in zigzag) for start in range(count)]
    return tuple(square + [order[::-1] for order in square] if count % 2 else square)


def next_turns(results: Sequence[Result], limits: Limits) -> list[Limits | None]:
    """Limits of one more sample of each trial, until all have enough samples except the last.

    While the ranking is undecided, sampling continues until the medians are known. A trial with enough samples
    continues with the others: an implementation alone with the caches would be faster.
    """
    turns = [next_turn(result, limits) for result in results]
    pairs = zip(results, turns, strict=True)
    taken = [(one.measurement, turn) for one, turn in pairs if one.measurement and one.status is Status.OK]
    if any(turn and len(one.samples_ns) + 1 < limits.max_samples for one, turn in taken):
        return turns
    fastest_ns = min((one.median_ns for one, _ in taken), default=0.0)
    near = [(one, turn) for one, turn in taken if one.median_ns <= NEAR * fastest_ns]
    is_open = len(near) > 1 and any(turn and not is_median_known(one.samples_ns) for one, turn in near)
    return turns if is_open else [None] * len(turns)


def next_turn(result: Result, limits: Limits) -> Limits | None:
    """Limits of one more sample of a trial; None if only its last sample remains, or it failed."""
    taken = result.measurement
    if result.status is not Status.OK or taken is None:
        return None
    most = replace(limits, max_samples=limits.scattered_samples)
    return None if most.enough(len(taken.samples_ns) + 1, sampled_s(taken)) else single(taken, limits)


def single(taken: Measurement, limits: Limits) -> Limits:
    """Limits of one sample, of as many calls as the previous ones."""
    warmup_s = 0.0 if taken.median_ns / 1e9 > LONG_S else min(WARM_AGAIN_S, limits.warmup_s)
    return replace(limits, min_samples=1, max_samples=1, warmup_s=warmup_s, calls=taken.calls_per_sample)


def sampled_s(taken: Measurement) -> float:
    """Total seconds of the samples."""
    return sum(taken.samples_ns) * taken.calls_per_sample / 1e9


def is_median_known(samples: Sequence[float]) -> bool:
    """Whether the median is known to `MEDIAN_ERROR`, by the samples one standard error to its left and right.

    Samples of arrays that share a cache with other processes differ by half.
    """
    ordered, count = sorted(samples), len(samples)
    middle, aside = (count - 1) / 2, sqrt(count) / 2
    low, high = ordered[max(round(middle - aside), 0)], ordered[min(round(middle + aside), count - 1)]
    return high - low <= 2 * MEDIAN_ERROR * ordered[count // 2]


def joined(before: Result, turn: Result) -> Result:
    """A trial's result after another round: with all samples, or the failure."""
    phases = dict(before.extra.get("phases_s", {}))
    for name, seconds in turn.extra.get("phases_s", {}).items():
        phases[name] = round(phases.get(name, 0.0) + seconds, 6)
    extra = {**before.extra, **turn.extra, "phases_s": phases}
    if turn.status is not Status.OK:
        return replace(turn, extra=extra)
    if before.measurement is None or turn.measurement is None:
        return replace(before, extra=extra)
    return replace(before, measurement=_with(before.measurement, turn.measurement), extra=extra)


def _with(before: Measurement, turn: Measurement) -> Measurement:
    return replace(
        before,
        samples_ns=before.samples_ns + turn.samples_ns,
        cpu_ns=before.cpu_ns + turn.cpu_ns,
        warmup=before.warmup + turn.warmup,
        dropped=before.dropped + turn.dropped,
        contended=before.contended + turn.contended,
    )
