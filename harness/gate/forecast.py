"""Forecast of a gate run: the jobs in the order of measuring, and the time that they take; nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from opgauge.harness.counting import counted
from opgauge.harness.gate.interleaved import pairs_at_once
from opgauge.harness.gate.pairs import BLOCK_S, FIRST_S, INTERLEAVED_S, PairPlan, first_batches
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import Job, JobRecord
from opgauge.harness.gate.run import Conditions
from opgauge.harness.gate.selection import Selection, plan
from opgauge.harness.judge.verdict import Comparison, Subject
from opgauge.harness.run.duration import duration_text

if TYPE_CHECKING:
    from opgauge.harness.gate.stored import Stored

FIRST_CALL_S = 0.6
"""Seconds, about, that drawing the inputs of a case, compiling a kernel and checking its outputs take."""
BIND_S = 0.06
"""Seconds, about, that a process takes to bind, call and check a case before its first sample."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Work of a gate run. jobs: in the order of measuring. skipped: comparisons without measuring, with reasons.

    expected_s: seconds if all cases are decided by their first pairs. most_s: if none is. notes: as in a report.
    removed: what only the base has.
    """

    jobs: tuple[Job, ...]
    skipped: tuple[Comparison, ...]
    expected_s: float
    most_s: float
    notes: tuple[str, ...]
    removed: tuple[Subject, ...] = ()

    def __str__(self) -> str:
        cases = len({job.subject.case_id for job in self.jobs})
        skipped = f", {len(self.skipped)} skipped as unchanged" if self.skipped else ""
        removed = f", {len(self.removed)} removed" if self.removed else ""
        jobs = counted(len(self.jobs), "comparison")
        return (
            f"{jobs} of {counted(cases, 'case')}{skipped}{removed}: about {duration_text(self.expected_s)}, "
            f"at most {duration_text(self.most_s)} if they stay undecided"
        )

    def as_plain(self) -> dict[str, Any]:
        """The forecast as plain JSON."""
        return {
            "cases": [_row(job) for job in self.jobs],
            "skipped": [str(one.subject) for one in self.skipped],
            "removed": [str(one) for one in self.removed],
            "expected_s": round(self.expected_s, 1),
            "most_s": round(self.most_s, 1),
            "notes": list(self.notes),
        }


def forecast(pool: WorkerPool, selection: Selection, conditions: Conditions, stored: Stored | None = None) -> Forecast:
    """Lay out the jobs of a gate run, and estimate its duration; raises what `plan` raises."""
    started = monotonic()
    laid = plan(pool, selection, conditions.policy, stored)
    spent_s = start_s = monotonic() - started  # of a process per side that read the trees, both at once
    pairs = conditions.pair_plan()
    batches = first_batches(laid.jobs, pairs)
    expected_s = spent_s + sum(_batch_s(jobs, count, pairs, start_s, FIRST_S) for jobs, count in batches)
    most = [(jobs, max(count, conditions.schedule.total)) for jobs, count in batches]
    most_s = spent_s + sum(_batch_s(jobs, count, pairs, start_s, INTERLEAVED_S) for jobs, count in most)
    left_s = pairs.left_s()
    jobs = tuple(job for found, _ in batches for job in found)
    removed = tuple(one.subject for one in laid.removed)
    return Forecast(jobs, laid.skipped, min(expected_s, left_s), min(most_s, left_s), laid.notes, removed)


def _batch_s(jobs: Sequence[Job], count: int, plan: PairPlan, start_s: float, interleaved_s: float) -> float:
    """Seconds of the pairs of one batch: processes, first calls and sampling. interleaved_s: of an interleaved pair."""
    interleaved = plan.is_interleaved(jobs[0])
    sides = len(jobs[0].sides)
    sample_s = plan.block_s or (interleaved_s if interleaved else BLOCK_S)
    # both processes of an interleaved pair start at the same time
    processes = count if interleaved else count * sides
    first_s = len(jobs) * FIRST_CALL_S * sides
    bind_s = BIND_S / (pairs_at_once([*map(JobRecord, jobs)], plan.threads) if interleaved else 1)
    return first_s + processes * start_s + count * sides * len(jobs) * (sample_s + bind_s)


def _row(job: Job) -> dict[str, Any]:
    subject = job.subject
    return {
        "op": subject.op,
        "case": subject.case,
        "case_id": subject.case_id,
        "implementation": subject.implementation,
        "device": subject.device,
        "sides": list(job.sides),
    }
