"""Implementations of a case take their samples in turns, so that their ratio is of the same minutes of a host.

A shared host is slow for a while and fast for a while. Measured one after the other, one implementation meets
another host than the next; in turns of one sample, all meet the same. Each takes its turn after each other one
equally often: what a call finds in the caches, and how awake the other cores are, is of the one before. All work
on the same inputs and outputs: where each had its own, and a few of them fit the last cache, one would keep its place
there at the cost of the others, for a whole run, and be twice as fast.
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
"""The first turn takes one such part of the samples, enough to tell of an implementation if the worker is lost."""
WARM_AGAIN_S = 0.002
"""Of calls, one at least, before the sample of a later turn: others had caches and cores meanwhile."""
LONG_S = 0.01
"""A call that lasts longer needs none. The call counts, not the sample: one implementation's samples had grown past a
bound by chance, so the next were cold and stayed past it, at twice the time of another."""
NEAR = 1.25
"""Of implementations that take at most so many times what the fastest does, it is open who is faster."""
SETTLED = 0.02
"""Samples agree where their median is known this well: its standard error, as a share of it."""


def interleave(
    bench: Bench, implementations: Sequence[str], limits: Limits, report: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Sample held implementations of the case at hand round-robin, until all have enough.

    Each is checked right after its last sample: the next one writes to the same outputs. report: called with the
    implementation that is sampled next.
    """
    results = [bench.held[name][1] for name in implementations]
    for order in cycle(balanced_orders(len(results))):
        turns = next_turns(results, limits)
        is_last = not any(turns)
        for index in order:
            name, taken = implementations[index], results[index].measurement
            if results[index].status is not Status.OK or taken is None or not (turns[index] or is_last):
                continue
            report(name)
            results[index] = joined(results[index], bench.sample(name, single(taken, limits), is_last=is_last))
        if is_last:
            break
    return [with_series(result) for result in results]


def first_turn(limits: Limits) -> Limits:
    """A share of what is allowed."""
    return replace(
        limits,
        budget_s=limits.budget_s / limits.turns,
        min_samples=ceil(limits.min_samples / limits.turns),
        max_samples=ceil(limits.max_samples / limits.turns),
    )


def balanced_orders(count: int) -> tuple[tuple[int, ...], ...]:
    """Orders of so many, in which each comes equally often in each place, and right after each other one.

    A Latin square of Williams 1949; of an odd number, two.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    square = [tuple((start + step) % count for step in zigzag) for start in range(count)]
    return tuple(square + [order[::-1] for order in square] if count % 2 else square)


def next_turns(results: Sequence[Result], limits: Limits) -> list[Limits | None]:
    """One more sample of each trial that may have one, until all have enough but the last.

    Where it is open who is fastest, until their medians are known. Who has enough goes on with the others: what is
    left alone with the caches is faster there.
    """
    turns = [next_turn(result, limits) for result in results]
    pairs = zip(results, turns, strict=True)
    taken = [(one.measurement, turn) for one, turn in pairs if one.measurement and one.status is Status.OK]
    if any(turn and len(one.samples_ns) + 1 < limits.max_samples for one, turn in taken):
        return turns
    fastest_ns = min((one.median_ns for one, _ in taken), default=0.0)
    near = [(one, turn) for one, turn in taken if one.median_ns <= NEAR * fastest_ns]
    is_open = len(near) > 1 and any(turn and not is_settled(one.samples_ns) for one, turn in near)
    return turns if is_open else [None] * len(turns)


def next_turn(result: Result, limits: Limits) -> Limits | None:
    """One more sample of a trial; None where it has all that it may but the last, or went wrong."""
    taken = result.measurement
    if result.status is not Status.OK or taken is None:
        return None
    most = replace(limits, max_samples=limits.scattered_samples)
    return None if most.enough(len(taken.samples_ns) + 1, sampled_s(taken)) else single(taken, limits)


def single(taken: Measurement, limits: Limits) -> Limits:
    """A turn of one sample, of as many calls as those before."""
    warmup_s = 0.0 if taken.median_ns / 1e9 > LONG_S else min(WARM_AGAIN_S, limits.warmup_s)
    return replace(limits, min_samples=1, max_samples=1, warmup_s=warmup_s, calls=taken.calls_per_sample)


def sampled_s(taken: Measurement) -> float:
    """How long its samples took together."""
    return sum(taken.samples_ns) * taken.calls_per_sample / 1e9


def is_settled(samples: Sequence[float]) -> bool:
    """Whether the median is known to `SETTLED`, by the samples a standard error to the left and right of it.

    What arrays leave free of a cache that others use too makes samples differ by half.
    """
    ordered, count = sorted(samples), len(samples)
    middle, aside = (count - 1) / 2, sqrt(count) / 2
    low, high = ordered[max(round(middle - aside), 0)], ordered[min(round(middle + aside), count - 1)]
    return high - low <= 2 * SETTLED * ordered[count // 2]


def joined(before: Result, turn: Result) -> Result:
    """A trial's result after another turn: with all samples, or that it went wrong."""
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
