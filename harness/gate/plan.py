"""Plan of a gate run: jobs to measure, and subjects that need no measuring."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opgauge.harness.case.case import GatePolicy
from opgauge.harness.gate.policy import Policy
from opgauge.harness.gate.record import HEAD, MEDIAN, SIDES, BlockOutcome, Job
from opgauge.harness.judge.verdict import Comparison, Evidence, Kind, Reason, Side, Subject
from opgauge.harness.result.summary import BASELINE, OPTIMIZED

Plain = Mapping[str, Any]
"""A JSON object of a worker's inventory."""


@dataclass(frozen=True, slots=True)
class GatePlan:
    """Plan of a gate run.

    jobs: to be measured. own: limits in the case files. facts: jobs that are measured only for others. stored:
    stored results of the base. removed: subjects that only the base has. skipped: subjects that are not measured,
    with the reason. notes: facts for the user.
    """

    jobs: tuple[Job, ...]
    devices: tuple[str, ...] = ()
    own: Mapping[Subject, GatePolicy] = field(default_factory=dict)
    facts: frozenset[Subject] = frozenset()
    stored: Mapping[Subject, Sequence[BlockOutcome]] = field(default_factory=dict)
    removed: tuple[Evidence, ...] = ()
    skipped: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeTrials:
    """Selected content of one tree: trials by subject, folders of `ops` by op."""

    trials: Mapping[Subject, Plain]
    folders: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[tuple[str, str, str], Sequence[BlockOutcome]] = field(default_factory=dict)


def lay_out(
    head: TreeTrials,
    base: TreeTrials,
    unchanged: Collection[tuple[str, str]],
    policy: Policy,
    devices: tuple[str, ...],
    notes: list[str],
) -> GatePlan:
    """The plan for the selected trials of both trees.

    unchanged: ops and devices that are skipped in subjects of both trees. The baseline of a case with a required
    speedup is measured with it.
    """
    own = {subject: GatePolicy(**trial["case"]["gate"]) for subject, trial in head.trials.items()}
    known = {subject.key for subject in base.trials}
    here = {subject.key for subject in head.trials}
    jobs: dict[Subject, Job] = {}
    skipped = []
    for subject, trial in head.trials.items():
        if (subject.op, subject.device) in unchanged and subject.key in known:
            skipped.append(Comparison(subject, Kind.SKIPPED, None, Reason.UNCHANGED))
            continue
        sides = SIDES if subject.key in known and not base.blocks else (HEAD,)
        asked = policy.asked_of(subject, own[subject])
        jobs[subject] = Job(subject, trial, sides, asked.budget_s, asked.statistic or MEDIAN)
    facts = {
        subject: job
        for one in list(jobs.values())
        if one.subject.implementation == OPTIMIZED
        and policy.asked_of(one.subject, own[one.subject]).min_speedup is not None
        for subject, job in [_baseline_job(one)]
        if subject not in jobs
    }
    removed = tuple(Evidence(subject, Side(), None) for subject in base.trials if subject.key not in here)
    return GatePlan(
        jobs=(*jobs.values(), *facts.values()),
        devices=devices,
        own=own,
        facts=frozenset(facts),
        stored={subject: base.blocks[subject.key] for subject in jobs if subject.key in base.blocks},
        removed=removed,
        skipped=tuple(skipped),
        notes=tuple(notes),
    )


def baseline_of(subject: Subject) -> Subject:
    """The same case by the baseline."""
    return Subject(subject.op, subject.case, subject.case_id, BASELINE, subject.device)


def _baseline_job(job: Job) -> tuple[Subject, Job]:
    subject = baseline_of(job.subject)
    return subject, Job(subject, {**job.trial, "implementation": BASELINE}, (HEAD,))
