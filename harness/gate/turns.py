"""Turns of the two processes of an interleaved pair: how long each is, and when there are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import monotonic

import numpy as np

from opgauge.harness.gate.record import SIDES, BlockOutcome, JobRecord
from opgauge.harness.measure import Limits

SAMPLE_S = 0.004
"""Least duration of a sample on the CPU.

The other process has evicted a core's private caches, and changing the process takes 1 ms. Up to some 8 ms the times of
neighbouring samples differ independently, so that shorter ones would be no more precise in the same time.
"""
WARMUP_S = 0.0005
"""Duration of calls before a sample, for calls that are shorter."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 400
"""Least and most samples of a side in one pair; even, so that each side is first equally often."""
PRECISE = 0.004
"""Standard error of a pair's log ratio at which sampling stops: less than the difference between processes."""
WAITED = 0.05
"""Share of a sample, above the usual one, that its process may wait for the CPU."""
PATIENCE = 3.0
"""Multiple of a pair's time after which it ends although most samples were disturbed."""
CUDA_SAMPLES = 5
"""Samples per turn on a GPU, where changing the process costs more than a sample."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Amount of sampling in one pair.

    side_s: seconds per side and case. threads: of each process on the CPU. end: time at which sampling stops, by
    `time.monotonic`.
    """

    side_s: float
    threads: int = 1
    end: float | None = None

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.end is not None and monotonic() >= self.end


@dataclass(slots=True)
class Times:
    """Times of alternating samples by side, and the share of each during which its process did not run."""

    times_ns: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    idle: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def add(self, side: str, found: BlockOutcome) -> None:
        """Add the samples of one turn, as their median."""
        time_ns = float(np.median(found.samples_ns))
        busy_ns = found.measurement.cpu_ns if found.measurement else ()
        self.times_ns[side].append(time_ns)
        self.idle[side].append(1.0 - float(np.median(busy_ns)) / time_ns if busy_ns else 0.0)

    def undisturbed(self) -> dict[str, list[float]]:
        """Times of the turns in which neither process waited for its CPU longer than usual; all if those are few.

        A kernel that sleeps waits equally in each sample.
        """
        chosen = np.all([np.array(idle) <= np.min(idle, initial=1.0) + WAITED for idle in self.idle.values()], axis=0)
        if np.count_nonzero(chosen) < LEAST_ROUNDS:
            return self.times_ns
        return {side: np.array(times)[chosen].tolist() for side, times in self.times_ns.items()}


def usual_s(record: JobRecord, side: str) -> float | None:
    """Seconds of a call in the latest pair; None before any."""
    found = record.medians_ns(side)
    return found[max(found)] / 1e9 if found else None


def turn_limits(record: JobRecord, taken: Mapping[str, BlockOutcome], *, is_known: bool) -> Limits:
    """Limits of one turn; the same number of calls per sample on both sides.

    is_known: earlier pairs tell the duration of a call, as these were measured alike.
    """
    if record.job.subject.device != "cpu":
        return Limits(budget_s=0.0, min_samples=CUDA_SAMPLES, max_samples=CUDA_SAMPLES, warmup_s=WARMUP_S)
    known = {side: usual_s(record, side) if is_known else None for side in taken}
    fast_s, slow_s = sorted(known[side] or (one.median_ns or 1.0) / 1e9 for side, one in taken.items())
    warmup_s = WARMUP_S if fast_s < WARMUP_S else 0.0
    # a side that is slower by a factor needs no long samples
    calls = max(1, ceil(min(SAMPLE_S / fast_s, 2 * SAMPLE_S / slow_s)))
    return Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=warmup_s, calls=calls)


def is_enough(times: Times, spent_s: float, effort: Effort, rounds: int) -> bool:
    """Whether the ratio of this pair is known, or the time is over."""
    if rounds != MOST_ROUNDS:
        return False
    if effort.is_over() or spent_s >= PATIENCE * 2 * effort.side_s:
        return True
    found = times.undisturbed()
    base, head = (found[side] for side in SIDES)
    if len(base) < 4 * LEAST_ROUNDS:
        return len(base) >= LEAST_ROUNDS and spent_s >= 2 * effort.side_s
    return spent_s >= 2 * effort.side_s or standard_error(base, head) <= PRECISE


def standard_error(base_ns: Sequence[float], head_ns: Sequence[float]) -> float:
    """Standard error of the median of the log ratios of neighbours, from their quartiles."""
    ratios = np.log(np.array(head_ns) / np.array(base_ns))
    low, high = np.quantile(ratios, (0.25, 0.75))
    return float(1.2533 * (high - low) / 1.349 / np.sqrt(ratios.size))
