"""Evidence for `opgauge.harness.judge.compare`, from the processes of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median, median_low
from typing import Any

from opgauge.harness.gate.gate import Facts
from opgauge.harness.gate.record import (
    BASE,
    HEAD,
    SIDES,
    BlockOutcome,
    JobRecord,
    is_coarsely_slower,
    is_disturbed,
)
from opgauge.harness.judge.verdict import Evidence, Metrics, Pair, Side, Subject
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import bound_of, impossible_below

GRAVEST = (Status.WRONG, Status.ERROR, Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.OK)
"""Statuses in order of gravity."""


def evidence_of(record: JobRecord, ceilings: Mapping[str, Ceilings], noise_floor: float = 0.0) -> Evidence:
    """Evidence of a job, from all its processes."""
    return Evidence(
        subject=record.job.subject,
        base=side_of(record, BASE),
        head=side_of(record, HEAD),
        pairs=record.pairs_ns(),
        calibration=_calibrations(record),
        disturbed=sum(map(is_disturbed, record.outcomes[HEAD].values())),
        slower_with_threads=is_coarsely_slower(record),
        crowded=record.is_crowded,
        noise_floor=noise_floor,
        floor_ns=_floor_ns(record, ceilings),
    )


def with_counts(evidence: Evidence, counts: Mapping[str, int]) -> Evidence:
    """Evidence with the instructions of a call, by side."""
    if len(counts) < len(SIDES) or evidence.base is None or evidence.head is None:
        return evidence
    base, head = (
        replace(side, metrics=replace(side.metrics, instructions=counts[name]))
        for side, name in ((evidence.base, BASE), (evidence.head, HEAD))
    )
    return replace(evidence, base=base, head=head)


def side_of(record: JobRecord, side: str) -> Side | None:
    """Outcome of a job on one side; None if it is not in that tree."""
    blocks = [record.outcomes[side][pair] for pair in sorted(record.outcomes[side])]
    if not blocks:
        return None
    worst = min(blocks, key=lambda one: GRAVEST.index(one.status))
    checks = [one.check for one in blocks if one.check is not None]
    check = min(checks, key=lambda one: (one.ok, -one.worst)) if checks else None
    return Side(worst.status, check, metrics_of(blocks), reason=worst.reason)


def metrics_of(blocks: Iterable[BlockOutcome]) -> Metrics:
    """Metrics without noise: the middle value of each, in case processes differ."""
    found = [one.measurement for one in blocks if one.measurement is not None]
    prints = [one.footprint for one in found if one.footprint is not None]
    kernels = {one.kernels for one in prints}
    return Metrics(
        launches=_middle(one.launches for one in prints),
        kernels=kernels.pop() if len(kernels) == 1 else None,
        allocations=_middle(one.allocations for one in prints),
        peak_bytes=_middle(one.peak_bytes for one in found),
        registers=_middle(one.registers for one in prints),
        spills=_middle(one.spill_bytes for one in prints),
    )


def facts_of(
    record: JobRecord, records: Mapping[Subject, JobRecord], baseline: Subject, ceilings: Mapping[str, Ceilings]
) -> Facts:
    """Facts about the head for the demands of the policy; `baseline` is the denominator of min_speedup."""
    time_ns = median_of(record, HEAD)
    other = records.get(baseline)
    baseline_ns = None if other is None else median_of(other, HEAD)
    work = _work(record, ceilings)
    bound = None if work is None else bound_of(*work)
    metrics = metrics_of(record.outcomes[HEAD].values())
    return Facts(
        record.job.subject,
        speedup=baseline_ns / time_ns if time_ns and baseline_ns else None,
        ceiling_share=bound.time_ns / time_ns if time_ns and bound else None,
        launches=metrics.launches,
    )


def median_of(record: JobRecord, side: str) -> float | None:
    """Median of the process medians of a side, in nanoseconds."""
    found = record.medians_ns(side)
    return median(found.values()) if found else None


def clock_of(record: JobRecord, side: str) -> float | None:
    """Median clock of the samples of a side, in MHz."""
    clocks = [mhz for one in record.outcomes[side].values() if one.measurement for mhz in one.measurement.clock_mhz]
    return median(clocks) if clocks else None


def _calibrations(record: JobRecord) -> tuple[Pair, ...]:
    """Calibration times of both sides of each pair; none if samples alternated, since the host then affects both."""
    if any(one.is_interleaved for one in record.outcomes[HEAD].values()):
        return ()
    levels = {
        side: {pair: one.ruler.level_ns for pair, one in blocks.items() if one.ruler is not None}
        for side, blocks in record.outcomes.items()
    }
    shared = sorted(levels[BASE].keys() & levels[HEAD].keys())
    return tuple((levels[BASE][pair], levels[HEAD][pair]) for pair in shared)


def _floor_ns(record: JobRecord, ceilings: Mapping[str, Ceilings]) -> float | None:
    """Least possible time of the head, by the bound that `run` uses; None if it is not known."""
    work = _work(record, ceilings)
    bound = None if work is None else impossible_below(*work)
    return None if bound is None else bound.time_ns


def _work(
    record: JobRecord, ceilings: Mapping[str, Ceilings]
) -> tuple[Ceilings, int, int, str, Mapping[str, Any]] | None:
    """Ceilings of the device, and bytes, flops, dtype and notes of the head; None if nothing was measured."""
    reached = ceilings.get(record.job.subject.device)
    blocks = list(record.outcomes[HEAD].values())
    if reached is None or not blocks:
        return None
    largest = max(blocks, key=lambda one: (one.bytes, one.flops))
    dtype = str(record.job.trial.get("case", {}).get("dtype", ""))
    return reached, largest.bytes, largest.flops, dtype, largest.extra


def _middle(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return median_low(known) if known else None
