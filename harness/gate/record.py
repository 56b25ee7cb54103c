"""Records of the gate's jobs and of their measurements.

A job is one trial and the sides it is measured on. A block is one process of one side. A pair is a block of each side.
Trials stay plain JSON: the process that compares two trees may be unable to build the cases of either.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from opgauge.harness.judge.verdict import Pair, Subject
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Calibration, Check, Measurement, Status

BASE, HEAD = "base", "head"
"""Names of the sides."""
SIDES = (BASE, HEAD)
"""Both sides."""
MEASURING = "measure"
"""Phase of sampling."""
METHOD = "method"
"""Key of `BlockOutcome.extra`: how the samples of a pair were taken. Absent: one process after the other."""
INTERLEAVED = "interleaved/2"
"""Samples of both sides alternated: the n-th of one side and the n-th of the other are neighbours. 2: kernels allocate
in huge pages."""
BLOCKS = "blocks/1"
"""One process of a side, then one of the other."""
BUSY = "busy_share"
"""Key of `BlockOutcome.extra`: share of its CPUs that other processes used meanwhile, 0 to 1."""
MOST_BUSY = 0.1
"""Busy share up to which a process with several threads counts as undisturbed."""
STORED_FINGERPRINT = "stored_fingerprint"
"""Key of `BlockOutcome.extra`: the fingerprint of a stored outcome, which is not trusted, and tells changes alone."""
COARSE = 0.22
"""Log ratio beyond which a kernel with all threads is slower: a factor of 1.25, which exceeds the noise of barriers."""
CHECKED_PAIRS = 4
"""One of so many first pairs, drawn for each job, also checks calls outside the samples."""
MEDIAN = "median"
"""Name of the default statistic."""
STATISTICS = {MEDIAN: 0.5, "min": 0.0, "p10": 0.1, "p25": 0.25, "p75": 0.75, "p90": 0.9}
"""Statistics of a process's samples that may be compared, as quantiles."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trial as plain JSON and the sides to measure it on.

    budget_s: seconds of sampling per side; None: no limit. statistic: see `STATISTICS`.
    """

    subject: Subject
    trial: Mapping[str, Any]
    sides: tuple[str, ...] = SIDES
    budget_s: float | None = None
    statistic: str = MEDIAN

    @property
    def is_paired(self) -> bool:
        """Whether it has two sides."""
        return len(self.sides) == len(SIDES)


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """Outcome of a job in one process; fields as in `opgauge.harness.result.result.Result`."""

    status: Status
    reason: str = ""
    check: Check | None = None
    measurement: Measurement | None = None
    bytes: int = 0
    flops: int = 0
    deterministic: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    ruler: Calibration | None = None

    @property
    def samples_ns(self) -> tuple[float, ...]:
        """Times of one call, in nanoseconds."""
        return self.measurement.samples_ns if self.measurement else ()

    @property
    def median_ns(self) -> float | None:
        """Median of the samples; None without samples."""
        return self.measurement.median_ns if self.measurement and self.measurement.samples_ns else None

    @property
    def is_known(self) -> bool:
        """Whether its outputs were correct and have a digest to recognize them by."""
        return self.check is not None and self.check.ok and "fingerprint" in self.extra

    @property
    def fingerprint(self) -> tuple[str, str]:
        """Digests of the inputs and of the code that checked the outputs; empty if unknown."""
        found = self.extra["fingerprint"] if self.is_known else self.extra.get(STORED_FINGERPRINT, "")
        inputs, _, code = str(found).partition(" ")
        return inputs, code

    @property
    def is_interleaved(self) -> bool:
        """Whether its samples alternated with those of the other side."""
        return str(self.extra.get(METHOD)).startswith(INTERLEAVED.partition("/")[0])

    @property
    def sampling_s(self) -> float:
        """Seconds spent on warming up and sampling."""
        return self.phases_s.get(MEASURING, 0.0)

    @property
    def phases_s(self) -> Mapping[str, float]:
        """Seconds by phase of the trial."""
        found: Mapping[str, float] = self.extra.get("phases_s", {})
        return found


def outcome_from(plain: Mapping[str, Any], **extra: Any) -> BlockOutcome:
    """The outcome in a result that is plain JSON, with more entries for `extra`."""
    known = {item.name for item in fields(BlockOutcome)}
    found = {name: value for name, value in plain.items() if name in known}
    return from_json(BlockOutcome, {**found, "extra": {**found.get("extra", {}), **extra}})


@dataclass(slots=True)
class JobRecord:
    """All outcomes of one job, by side and number of the pair.

    seen: outcome of a first call on each side, before any pair. coarse: log ratios (head over base) of one sample
    pair each with all threads, by process pair. is_crowded: whether other processes used the CPUs during those.
    checked_pair: number of the pair whose kernels are also checked outside the samples, which takes longer than those.
    """

    job: Job
    outcomes: dict[str, dict[int, BlockOutcome]] = field(default_factory=lambda: {side: {} for side in SIDES})
    seen: dict[str, BlockOutcome] = field(default_factory=dict)
    coarse: list[tuple[float, ...]] = field(default_factory=list)
    is_crowded: bool = False
    checked_pair: int = field(default_factory=partial(random.randrange, CHECKED_PAIRS))

    def trusted(self, side: str) -> dict[str, Any] | None:
        """Digest of outputs that were checked against the reference, for `RunTrial.trusted`; None if there is none.

        Outputs that the other side checked count too, with the fingerprint of the check.
        """
        other = SIDES[SIDES.index(side) - 1]
        own = [*self.outcomes[side].values(), *(found for at, found in self.seen.items() if at == side)]
        others = [*self.outcomes[other].values(), *(found for at, found in self.seen.items() if at == other)]
        known = next((one for one in (*own, *others) if one.is_known), None)
        if known is None or known.check is None:
            return None
        found = {"digest": known.extra["digest"], "check": to_json(known.check)}
        is_own = any(one is known for one in self.outcomes[side].values())
        return found if is_own else {**found, "fingerprint": known.extra["fingerprint"]}

    def fingerprint(self, side: str) -> tuple[str, str]:
        """The fingerprint of a side's outcomes; empty where none was correct."""
        outcomes = [*self.outcomes[side].values(), *(found for at, found in self.seen.items() if at == side)]
        return next((one.fingerprint for one in outcomes if any(one.fingerprint)), ("", ""))

    @property
    def method(self) -> str:
        """How its pairs were measured, with the version of the method."""
        return INTERLEAVED if any(one.is_interleaved for one in self.outcomes[HEAD].values()) else BLOCKS

    @property
    def attempts(self) -> int:
        """Number of the head's processes; every job has a head."""
        return len(self.outcomes[HEAD])

    @property
    def is_final(self) -> bool:
        """Whether a process failed in a way that further ones would not change, and the head was tried."""
        return bool(self.outcomes[HEAD]) and any(
            one.status is not Status.OK for blocks in self.outcomes.values() for one in blocks.values()
        )

    @property
    def sampling_s(self) -> float:
        """Seconds of sampling of the side that took more."""
        return max(sum(one.sampling_s for one in blocks.values()) for blocks in self.outcomes.values())

    def drop_half_pairs(self) -> None:
        """Forget outcomes of one side alone, where both are measured: the budget ended between them."""
        if self.job.is_paired:
            shared = self.outcomes[BASE].keys() & self.outcomes[HEAD].keys()
            self.outcomes = {
                side: {pair: one for pair, one in self.outcomes[side].items() if pair in shared} for side in SIDES
            }

    def medians_ns(self, side: str) -> dict[int, float]:
        """Block medians by number of the pair, in nanoseconds."""
        return {pair: time for pair, one in self.outcomes[side].items() if (time := one.median_ns) is not None}

    def pairs_ns(self) -> tuple[Pair, ...]:
        """The compared statistic of each pair that was not disturbed, base and head, in nanoseconds."""
        shared = sorted(self.medians_ns(BASE).keys() & self.medians_ns(HEAD).keys())
        found = [(self.outcomes[BASE][pair], self.outcomes[HEAD][pair]) for pair in shared]
        return tuple(pair_ns(*pair, self.job.statistic) for pair in found if not any(map(is_disturbed, pair)))


def is_disturbed(outcome: BlockOutcome) -> bool:
    """Whether other processes used the CPUs of a block with several threads."""
    return float(outcome.extra.get(BUSY, 0.0)) > MOST_BUSY


def is_coarsely_slower(record: JobRecord) -> bool:
    """Whether the head was slower by a factor with all threads in every process pair."""
    return bool(record.coarse) and all(median(one) > COARSE for one in record.coarse)


def pair_ns(base: BlockOutcome, head: BlockOutcome, statistic: str = MEDIAN) -> Pair:
    """The compared statistic of one pair, base and head, in nanoseconds.

    The median of interleaved samples is that of the ratios of neighbours: a change of the host's speed reaches both.
    """
    first, second = np.array(base.samples_ns), np.array(head.samples_ns)
    if statistic == MEDIAN and base.is_interleaved and first.size == second.size:
        middle = float(np.median(first))
        return middle, middle * float(np.exp(median_log_ratio(first, second)))
    share = STATISTICS[statistic]
    return float(np.quantile(first, share)), float(np.quantile(second, share))


def median_log_ratio(base_ns: Sequence[float] | Any, head_ns: Sequence[float] | Any) -> float:
    """Median of the log ratios of neighbouring samples."""
    return float(np.median(np.log(np.asarray(head_ns, np.float64) / np.asarray(base_ns, np.float64))))
