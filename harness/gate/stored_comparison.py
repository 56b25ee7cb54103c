"""Stored comparison: two groups of stored runs as the two sides of a gate, without measuring.

Runs of one side are replicates. A single run per side proves nothing: its ratio is reported with a warning.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from sqlalchemy import Engine

from opgauge.harness.case.case import EXPLORED
from opgauge.harness.errors import NothingError
from opgauge.harness.gate.evidence import evidence_of
from opgauge.harness.gate.gate import judge
from opgauge.harness.gate.policy import NOTHING_ASKED
from opgauge.harness.gate.record import BASE, HEAD, BlockOutcome, Job, JobRecord
from opgauge.harness.gate.run import Conditions, GateRun
from opgauge.harness.gate.stored import FINISHED, load_blocks, runs_of_branch
from opgauge.harness.judge.compare import compare_run
from opgauge.harness.judge.estimate import LEAST_PAIRS
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.run.environment import differences
from opgauge.harness.run.tree import Tree
from opgauge.harness.store import LATEST, run_queries
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo

LEAST_COMMIT = 6
"""Least characters of an abbreviated commit."""
Chosen = Callable[[Subject], bool]


def resolve(engine: Engine, name: str) -> list[RunInfo]:
    """Runs of a name: `last`, the beginning of one id, all runs of a commit, or those of a branch, latest first.

    Raises NothingError for none, and for a beginning of several ids.
    """
    if name == LATEST:
        found = _finished(run_queries.list_runs(engine))[:1]
    else:
        found = run_queries.find_runs(engine, name) if name else []
        if len(found) > 1:
            msg = f"several runs begin with {name}: {found[0].id}, {found[1].id}, …"
            raise NothingError(msg)
        if not found and len(name) >= LEAST_COMMIT:
            found = _finished(run_queries.list_runs(engine, commit=name))
        found = found or runs_of_branch(engine, name)
    if not found:
        msg = f"no run, commit or branch {name!r} with results in the database"
        raise NothingError(msg)
    return found


def _finished(runs: Sequence[RunInfo]) -> list[RunInfo]:
    return [run for run in runs if run.status in FINISHED]


def compare_stored(
    engine: Engine, base: Sequence[RunInfo], head: Sequence[RunInfo], conditions: Conditions, is_chosen: Chosen
) -> GateRun:
    """Judge the trials of both groups of runs as `gate` judges those that it measured.

    Cases of explorations that are only on one side are left out: each exploration draws its own.

    Raises NothingError if no trial is selected, the base has no run, or a run is on both sides.
    """
    twice = {run.id for run in base} & {run.id for run in head}
    if twice:
        msg = f"run {min(twice)[:8]} is on both sides"
        raise NothingError(msg)
    if not base:
        msg = "the base is the last run itself, which is the head: measure another, or name base and head"
        raise NothingError(msg)
    cases: dict[str, CaseInfo] = {}
    blocks = {BASE: load_blocks(engine, base, cases), HEAD: load_blocks(engine, head, cases)}
    subjects = list(filter(is_chosen, _comparable(blocks, cases)))
    if not subjects:
        msg = "these runs have no results that match"
        raise NothingError(msg)
    policy = conditions.policy
    records = {subject: _record(subject, blocks) for subject in subjects}
    evidence = [evidence_of(record, {}) for record in records.values()]
    # there is only one look, so an alarm needs no more pairs than an interval
    rules = [policy.rule_of(one.subject, NOTHING_ASKED, most_pairs=LEAST_PAIRS) for one in evidence]
    found = compare_run(evidence, rules)
    return GateRun(
        base=_tree(base),
        head=_tree(head),
        found=found,
        outcome=judge(found, policy, today=conditions.today, waivers=conditions.waivers),
        records=records,
        conditions=conditions,
        notes=tuple(_warnings(base, head, {subject.device for subject in subjects})),
        command=shlex.join(_command(base, head)),
    )


def _comparable(
    blocks: Mapping[str, Mapping[Subject, Sequence[BlockOutcome]]], cases: Mapping[str, CaseInfo]
) -> list[Subject]:
    """Subjects of both sides and of either one, except explored cases of one side."""
    both = blocks[BASE].keys() & blocks[HEAD].keys()
    explored = {case_id for case_id, info in cases.items() if EXPLORED in info.data.get("tags", ())}
    subjects = dict.fromkeys([*blocks[HEAD], *blocks[BASE]])
    return [subject for subject in subjects if subject in both or subject.case_id not in explored]


def _record(subject: Subject, blocks: Mapping[str, Mapping[Subject, Sequence[BlockOutcome]]]) -> JobRecord:
    """Outcomes of both sides, paired in order of time; those beyond the shorter side are excluded."""
    sides = tuple(side for side in (BASE, HEAD) if subject in blocks[side])
    record = JobRecord(Job(subject, {"case": {}}, sides))
    for side in sides:
        record.outcomes[side] = dict(enumerate(blocks[side][subject]))
    return record


def _warnings(base: Sequence[RunInfo], head: Sequence[RunInfo], devices: Collection[str]) -> list[str]:
    found = []
    if len(base) == 1 and len(head) == 1:
        found.append(
            "one run a side: a ratio may be the host's; name several runs of each side, or use opgauge gate --base"
        )
    for device in sorted(devices):
        unlike = differences(head[0].environment, base[0].environment, device)
        if unlike:
            found.append(f"different hardware or software, so differences may not be the code's: {'; '.join(unlike)}")
    return found


def _tree(runs: Sequence[RunInfo]) -> Tree:
    label = f"run {runs[0].id[:8]}" if len(runs) == 1 else f"{len(runs)} runs from {runs[-1].id[:8]}"
    return Tree(Path(), runs[0].commit, label)


def _command(base: Sequence[RunInfo], head: Sequence[RunInfo]) -> list[str]:
    words = ["opgauge", "compare", *(run.id[:8] for run in base)]
    return [*words, *(word for run in head for word in ("--head", run.id[:8]))]
