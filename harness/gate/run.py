"""One run of the gate: two trees planned, measured in pairs and judged; reports are made from its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from opgauge.harness.gate.clock import LISTING, OPENING, PEAKS, READING, Clock
from opgauge.harness.gate.counts import Counted, Counts, count_instructions, count_notes
from opgauge.harness.gate.evidence import evidence_of, facts_of, with_counts
from opgauge.harness.gate.gate import Breach, GateOutcome, Schedule, check_demands, judge
from opgauge.harness.gate.pairs import PairPlan, Tell, measure, unfinished_notes
from opgauge.harness.gate.plan import GatePlan, baseline_of
from opgauge.harness.gate.policy import NOTHING_ASKED, Policy
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import BASE, HEAD, SIDES, JobRecord
from opgauge.harness.gate.selection import Selection, plan
from opgauge.harness.gate.waiver import Waiver
from opgauge.harness.judge.compare import compare_run
from opgauge.harness.judge.verdict import Comparison, Evidence, Rule, Side, Subject, Verdict
from opgauge.harness.project.active import measured
from opgauge.harness.project.revision import ownership_note
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Profile
from opgauge.harness.result.summary import OPTIMIZED
from opgauge.harness.run.tree import Tree

if TYPE_CHECKING:
    from opgauge.harness.gate.stored import Stored

PROFILED = 12
"""Flagged cases whose kernels are listed."""
Noise = Mapping[tuple[str, str, str], float]
"""Noise floors of series: by case id, implementation and device."""


@dataclass(frozen=True)
class Conditions:
    """How to measure and judge.

    end: time by `time.monotonic` at which measuring stops; None: no limit. block_s: seconds of sampling per side and
    pair; None: the method's default. threads: of each process on the CPU. counts: also count instructions on the CPU.
    method: see `PairPlan`. profile: list the kernels of flagged cases on a GPU, after all timing. among: judge each
    case by itself, as one of this many of which the others have not changed; 0: all of them together.
    """

    policy: Policy = field(default_factory=Policy)
    waivers: tuple[Waiver, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    block_s: float | None = None
    end: float | None = None
    noise: Noise = field(default_factory=dict)
    threads: int = 1
    counts: bool = False
    method: str | None = None
    among: int = 0
    profile: bool = True
    today: date = field(default_factory=lambda: datetime.now(UTC).date())

    def pair_plan(self) -> PairPlan:
        """The part that decides how pairs are measured."""
        return PairPlan(self.schedule, self.block_s, self.end, self.threads, self.method)


@dataclass(frozen=True)
class GateRun:
    """Value of a gate run. base: a tree, or a description of stored results.

    records: of the measured jobs, by subject. clock, seconds: of this run, from begin to end. paths: named case
    files. profiles: kernel lists of flagged cases, by side. notes: facts for the user. command: compares again if
    nothing was measured; empty: `opgauge gate`.
    """

    base: Tree
    head: Tree
    found: tuple[Comparison, ...]
    outcome: GateOutcome
    records: Mapping[Subject, JobRecord]
    conditions: Conditions
    ceilings: Mapping[str, Ceilings] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    seconds: float = 0.0
    paths: tuple[Path, ...] = ()
    profiles: Mapping[Subject, Mapping[str, Profile]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    command: str = ""

    @property
    def devices(self) -> list[str]:
        """Devices, in order of first use."""
        return list(dict.fromkeys(one.subject.device for one in self.found))


def gate(
    pool: WorkerPool,
    selection: Selection,
    conditions: Conditions,
    *,
    tell: Tell = lambda _: None,
    laid: GatePlan | None = None,
    stored: Stored | None = None,
    begun: float | None = None,
) -> GateRun:
    """Compare the two trees of `pool`.

    laid: an existing plan, for runs that repeat it. stored: results in place of the base. begun: time by
    `time.monotonic` at which checkouts and builds of the trees began, if they count.
    """
    before, started = pool.clock.now(), monotonic() if begun is None else begun
    if begun is not None:
        pool.clock.add_outside({OPENING: monotonic() - begun})
    with pool.clock.outside(READING):
        layout = laid or plan(pool, selection, conditions.policy, stored)
    with pool.clock.outside(PEAKS):
        reached = _ceilings(pool, layout, conditions.policy)
    pool.prepare(())  # what was started for the ceilings of a GPU, where none are needed
    paired = conditions.pair_plan()
    counted = count_instructions(pool, layout.jobs, paired.left_s()) if conditions.counts else Counted()
    decide = _decider(layout, conditions, reached, counted.counts)
    with pool.until(conditions.end):
        records = measure(pool, layout.jobs, decide, paired, stored=layout.stored, tell=tell)
    found = (*decide(records), *layout.skipped)
    wants_lists = conditions.profile and paired.has_time(pool.clock.since(before).listing_s)
    with pool.clock.outside(LISTING):
        profiles = _profiles(pool, found, records) if wants_lists else {}
    breaches = _breaches(records, layout, conditions.policy, reached)
    return GateRun(
        base=pool.trees[BASE],
        head=pool.trees[HEAD],
        found=found,
        outcome=judge(found, conditions.policy, today=conditions.today, breaches=breaches, waivers=conditions.waivers),
        records=records,
        conditions=conditions,
        ceilings=reached,
        clock=pool.clock.since(before),
        seconds=monotonic() - started,
        paths=selection.paths,
        profiles=profiles,
        notes=(
            *layout.notes,
            *_ownership_notes(pool),
            *reference_notes(records),
            *count_notes(counted),
            *unfinished_notes(found, records, paired),
        ),
    )


def reference_notes(records: Mapping[Subject, JobRecord]) -> list[str]:
    """Notes of a project's ops whose inputs or references differ between the trees.

    Shipped ops have digests of whole folders, which kernels change too.
    """
    if measured() is None:
        return []
    inputs: set[str] = set()
    references: set[str] = set()
    for subject, record in records.items():
        base, head = (record.fingerprint(side) for side in (BASE, HEAD))
        if any(base) and any(head):
            inputs |= {subject.op} if base[0] != head[0] else set()
            references |= {subject.op} if base[1] != head[1] else set()
    texts = {
        "the base has other inputs, so that times and results are of other values": inputs,
        "the reference changed, and each tree is checked by its own: review it": references,
    }
    return [f"{', '.join(sorted(ops))}: {text}" for text, ops in texts.items() if ops]


def _ownership_notes(pool: WorkerPool) -> list[str]:
    """A note where git refuses to read the head's repository, so that its commit is unknown."""
    note = "" if pool.trees[HEAD].commit else ownership_note(pool.trees[HEAD].path)
    return [note] if note else []


def _decider(
    layout: GatePlan, conditions: Conditions, reached: Mapping[str, Ceilings], counted: Counts
) -> Callable[[Mapping[Subject, JobRecord]], Sequence[Comparison]]:
    most = conditions.schedule.most

    def decide(records: Mapping[Subject, JobRecord]) -> Sequence[Comparison]:
        evidence = [
            with_counts(evidence_of(record, reached, conditions.noise.get(subject.key, 0.0)), counted.get(subject, {}))
            for subject, record in records.items()
            if subject not in layout.facts
        ]
        evidence += layout.removed
        rules = [
            conditions.policy.rule_of(one.subject, layout.own.get(one.subject, NOTHING_ASKED), most_pairs=most)
            for one in evidence
        ]
        if not conditions.among:
            return compare_run(evidence, rules)
        return [_judge_among(one, rule, conditions.among) for one, rule in zip(evidence, rules, strict=True)]

    return decide


def _judge_among(one: Evidence, rule: Rule, count: int) -> Comparison:
    """One case's verdict if the other cases of the run have not changed at all."""
    quiet = Evidence(Subject("", "", "", "", ""), Side(), Side(), pairs=((1.0, 1.0),) * max(len(one.pairs), 1))
    return compare_run([one, *[quiet] * (count - 1)], [rule] * count)[0]


def _ceilings(pool: WorkerPool, layout: GatePlan, policy: Policy) -> dict[str, Ceilings]:
    """Achieved peaks: always of GPUs, since a faster time is impossible; of the CPU if the policy needs them."""
    asked = {
        one.subject.device
        for one in layout.jobs
        if one.subject in layout.own and policy.asked_of(one.subject, layout.own[one.subject]).min_ceiling is not None
    }
    wanted = [device for device in layout.devices if device != "cpu" or device in asked]
    return pool.ceilings(wanted) if layout.jobs else {}


def _profiles(
    pool: WorkerPool, found: Iterable[Comparison], records: Mapping[Subject, JobRecord]
) -> dict[Subject, dict[str, Profile]]:
    """Kernel lists of the first flagged cases on a GPU, both sides: in workers that time nothing."""
    flagged = [one.subject for one in found if one.verdict in {Verdict.SLOWER, Verdict.UNDECIDED}]
    jobs = [records[subject].job for subject in flagged if subject in records and subject.device != "cpu"]
    paired = [job for job in jobs if job.is_paired][:PROFILED]
    profiles: dict[Subject, dict[str, Profile]] = {job.subject: {} for job in paired}
    pool.prepare(SIDES if paired else ())
    for side in SIDES if paired else ():
        for job, profile in zip(paired, pool.profile(side, [job.trial for job in paired]), strict=True):
            profiles[job.subject][side] = profile
    return profiles


def _breaches(
    records: Mapping[Subject, JobRecord], layout: GatePlan, policy: Policy, reached: Mapping[str, Ceilings]
) -> list[Breach]:
    found: list[Breach] = []
    for subject, own in layout.own.items():
        record = records.get(subject)
        if record is None or record.is_final or subject.implementation != OPTIMIZED:
            continue
        facts = facts_of(record, records, baseline_of(subject), reached)
        asked = policy.asked_of(subject, own)
        # a CPU launches nothing
        found += check_demands(facts, replace(asked, max_launches=None) if subject.device == "cpu" else asked)
    return found
