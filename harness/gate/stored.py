"""Stored results as one side of a comparison: a run, or the latest runs of a branch.

Results are read as stored, without building their cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from opgauge.harness.case.case import EXPLORED
from opgauge.harness.errors import NothingError, TreeError
from opgauge.harness.gate.record import HEAD, STORED_FINGERPRINT, BlockOutcome
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.result.figures import with_possible_figures
from opgauge.harness.result.record_json import from_json
from opgauge.harness.result.result import Environment, Measurement, Result, Status, Trial
from opgauge.harness.run.environment import differences
from opgauge.harness.run.tree import Tree, reachable
from opgauge.harness.store import Store, queries, run_queries, self_tests
from opgauge.harness.store.history import history_of_branch
from opgauge.harness.store.project_state import find_state
from opgauge.harness.store.projects import list_commits
from opgauge.harness.store.queries import CaseInfo, Detail
from opgauge.harness.store.run_queries import RunInfo

if TYPE_CHECKING:
    from opgauge.harness.gate.run import GateRun

FINISHED = ("finished", "imported")
"""Statuses of runs that may be compared."""
LEAST_RUNS = 10
"""Least runs of `opgauge aa` for a noise floor."""
RUNS = 10
"""Most runs of a branch in a comparison, which is the largest number of pairs."""


@dataclass(frozen=True)
class Stored:
    """Outcomes by subject, oldest first, and a description of them."""

    tree: Tree
    blocks: Mapping[Subject, Sequence[BlockOutcome]]
    cases: Mapping[str, CaseInfo] = field(default_factory=dict)


def load(engine: Engine, name: str, tree: Path, here: Environment, devices: Iterable[str]) -> Stored:
    """Results of the run whose id begins with `name`, else of runs of the latest commits of the branch of that name.

    Cases that an exploration drew are of no tree's case files, and left out. Raises NothingError without any results,
    and TreeError, naming the difference, for results of another kind of machine than `here`.
    """
    names = list(devices)
    runs = run_queries.find_runs(engine, name) or runs_of_branch(
        engine, name, project=here.project, commits=set(reachable(tree, name))
    )
    if not runs:
        msg = f"no run and no branch {name!r} with results in the database"
        raise NothingError(msg)
    same = [run for run in runs if not any(differences(here, run.environment, device) for device in names)]
    if not same:
        found = [text for device in names for text in differences(here, runs[0].environment, device)]
        msg = f"run {runs[0].id[:8]} cannot be compared with: {'; '.join(found)}"
        raise TreeError(msg)
    chosen = same[:RUNS]
    cases: dict[str, CaseInfo] = {}
    blocks = load_blocks(engine, chosen, cases)
    drawn = {case_id for case_id, info in cases.items() if EXPLORED in info.data.get("tags", ())}
    label = f"run {chosen[0].id[:8]}" if len(chosen) == 1 else f"{len(chosen)} runs of {name}"
    return Stored(
        Tree(tree, chosen[0].commit, label),
        {one: found for one, found in blocks.items() if one.device in names and one.case_id not in drawn},
        cases,
    )


def load_blocks(
    engine: Engine, runs: Sequence[RunInfo], cases: dict[str, CaseInfo] | None = None
) -> dict[Subject, list[BlockOutcome]]:
    """Outcomes in stored runs, whose latest is first: the latest successful ones, at most `RUNS`, oldest first.

    cases: receives the cases by id.
    """
    blocks: dict[Subject, list[BlockOutcome]] = {}
    for run in reversed(runs):
        details = queries.list_details(engine, run.key, limit=100_000)
        infos = queries.load_cases(engine, {one.point.case_key for one in details})
        for one in details:
            info = infos[one.point.case_key]
            if cases is not None:
                cases[info.case_id] = info
            subject = Subject(info.op, info.name, info.case_id, one.point.implementation, one.point.device)
            blocks.setdefault(subject, []).append(_outcome(one))
    return {subject: _sound(found) for subject, found in blocks.items()}


def machine(here: Environment, device: str) -> str:
    """Hard environment entries of a device, in words."""
    return ", ".join(f"{key} {value}" for key, value in sorted(here.hard_of(device).items()))


def noise_floors(engine: Engine, here: Environment, devices: Iterable[str]) -> dict[tuple[str, str, str], float]:
    """Noise of series on this kind of machine: by case id, implementation and device."""
    wanted = {device: machine(here, device) for device in devices}
    found: dict[tuple[str, str, str], float] = {}
    for test in reversed(self_tests.list_self_tests(engine, "aa")):
        if test.data.get("machine") != wanted.get(test.device) or int(test.data.get("runs", 0)) < LEAST_RUNS:
            continue
        for one in test.data["cases"]:
            if one["device"] == test.device and one["noise_floor"] is not None:
                found[one["case_id"], one["implementation"], one["device"]] = float(one["noise_floor"])
    return found


def keep(store: Store, run: GateRun, here: Environment, command: str) -> str:
    """Store the head's outcomes as a run, for later comparisons; returns its id.

    Raises CaseError if this process's `ops` cannot build the cases.
    """
    results = [
        Result(
            from_json(Trial, record.job.trial),
            **{name: getattr(one, name) for name in BlockOutcome.__dataclass_fields__},
            block=pair,
        )
        for record in run.records.values()
        for pair, one in record.outcomes[HEAD].items()
    ]
    stored = store.begin_run(here, command=command)
    for result in results:
        store.add_result(stored, with_possible_figures(result))
    for reached in run.ceilings.values():
        store.add_ceilings(stored, reached)
    store.finish_run(stored)
    return stored


def runs_of_branch(
    engine: Engine, branch: str, *, project: str | None = None, commits: Collection[str] = ()
) -> list[RunInfo]:
    """Finished runs of a branch, latest commit first; those of modified trees only if there is no other.

    project: None: that of the run that was measured last. commits: commits of the branch, for runs that name another.
    """
    runs = [run for run in run_queries.load_runs_after(engine, 0) if run.status in FINISHED]
    if project is None:
        on_branch = (run for run in runs if run.branch == branch or run.sha in commits)
        latest = max(on_branch, key=lambda run: run.started, default=None)
        project = latest.project if latest else ""
    ours = (run for run in runs if run.project in {"", project})
    known, tips = list_commits(engine, project), find_state(engine, project).tips
    return list(history_of_branch(ours, known, branch, commits, tips).runs[::-1])


def _sound(blocks: list[BlockOutcome]) -> list[BlockOutcome]:
    """The outcomes that are ok; without any, all."""
    return [one for one in blocks if one.status is Status.OK][-RUNS:] or blocks[-1:]


def _outcome(detail: Detail) -> BlockOutcome:
    data: Mapping[str, Any] = detail.data
    measurement = None
    if data.get("measurement") is not None and detail.point.median_ns is not None:
        known = {**data["measurement"], "samples_ns": [detail.point.median_ns]}
        measurement = from_json(Measurement, known)
    plain = {name: data[name] for name in ("check", "ruler") if data.get(name) is not None}
    if fingerprint := data.get("extra", {}).get("fingerprint"):
        plain["extra"] = {STORED_FINGERPRINT: fingerprint}
    return from_json(
        BlockOutcome,
        {"status": detail.point.status, "reason": detail.reason, "bytes": detail.point.bytes, **plain},
        measurement=measurement,
    )
