"""Series of a case: one point per run of the history, in its order, and the changes of level.

A series is a case of one project by one implementation on one device of machines with the same hard entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Engine

from opgauge.harness.errors import NothingError
from opgauge.harness.judge.changepoint import LEAST_POINTS, ChangePoint, find_change_points
from opgauge.harness.judge.pattern import matches
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.result.result import Status
from opgauge.harness.store import queries, run_queries
from opgauge.harness.store.history import History, history_of, history_of_branch
from opgauge.harness.store.project_state import find_state
from opgauge.harness.store.projects import find_project, list_commits
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A run's median of its processes' medians, in nanoseconds."""

    run: str
    commit: str
    started: datetime
    median_ns: float


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of the history. machine: entries that decide whether times are comparable, in words."""

    project: str
    subject: Subject
    machine: str
    points: tuple[SeriesPoint, ...]

    def changes(self, least_ratio: float = 1.0) -> tuple[ChangePoint, ...]:
        """Changes of level; empty for too few points."""
        return find_change_points([point.median_ns for point in self.points], least_ratio=least_ratio)

    @property
    def is_long_enough(self) -> bool:
        """Whether change points can be found at all."""
        return len(self.points) >= LEAST_POINTS


def find_series(
    engine: Engine,
    pattern: str,
    *,
    branch: str | None = None,
    commits: Collection[str] = (),
    implementations: Collection[str] = (),
    device: str | None = None,
    since: datetime | None = None,
) -> list[Series]:
    """The series of the cases that a pattern of harness.judge.pattern selects; raises NothingError without one.

    branch: read its history, not that of the default branch. commits: those on `branch`, if git knows. since: start of
    the first run.
    """
    cases = _cases(engine, pattern)
    histories = _histories(engine, branch, commits)
    runs = {run.key: run for history in histories for run in history.runs if since is None or run.started >= since}
    place = {key: number for number, key in enumerate(runs)}
    found = queries.list_series(engine, cases.keys(), runs.keys())
    times: dict[tuple[str, Subject, str], dict[int, list[float]]] = {}
    for point in sorted(found, key=lambda one: place[one.run_key]):
        run = runs[point.run_key]
        if not point.median_ns or point.status != Status.OK:
            continue
        if (device and point.device != device) or (implementations and point.implementation not in implementations):
            continue
        info = cases[point.case_key]
        subject = Subject(info.op, info.name, info.case_id, point.implementation, point.device)
        machine = ", ".join(f"{key} {value}" for key, value in sorted(run.environment.hard_of(point.device).items()))
        by_run = times.setdefault((run.project, subject, machine), {})
        by_run.setdefault(point.run_key, []).append(point.median_ns)
    if not times:
        where = branch or "the default branch (--branch selects another)"
        stored = {_subject(info).path for info in queries.list_cases(engine)}
        swept = sorted(path for path in stored if path.startswith(f"{pattern}["))
        hint = f"did you mean {' or '.join(map(repr, swept))}?" if swept else "`opgauge run` stores some"
        msg = f"no stored result of {pattern} on {where}; {hint}"
        raise NothingError(msg)
    return [Series(*key, _points(by_run, runs)) for key, by_run in times.items()]


def as_plain(series: Series, least_ratio: float = 1.0) -> dict[str, Any]:
    """A series as plain JSON."""
    return {
        "project": series.project,
        "op": series.subject.op,
        "case": series.subject.case,
        "case_id": series.subject.case_id,
        "implementation": series.subject.implementation,
        "device": series.subject.device,
        "machine": series.machine,
        "points": [
            {"run": one.run, "commit": one.commit, "started": one.started.isoformat(), "median_ns": one.median_ns}
            for one in series.points
        ],
        "changes": [
            {
                "commit": series.points[one.index].commit,
                "commit_before": series.points[one.index - 1].commit,
                "run": series.points[one.index].run,
                "index": one.index,
                "before_ns": one.before,
                "after_ns": one.after,
                "ratio": one.ratio,
                "p_value": one.p_value,
            }
            for one in series.changes(least_ratio)
        ],
        "enough_points": series.is_long_enough,
    }


def _cases(engine: Engine, pattern: str) -> dict[int, CaseInfo]:
    """All stored forms of the cases that a pattern selects, by number; the latest name of each counts."""
    found = queries.find_case(engine, pattern) or [
        info for info in queries.list_cases(engine) if matches(pattern, _subject(info))
    ]
    latest = {info.case_id: info for info in found}
    return {info.key: latest[info.case_id] for info in found}


def _subject(info: CaseInfo) -> Subject:
    return Subject(info.op, info.name, info.case_id, "", "")


def _histories(engine: Engine, branch: str | None, commits: Collection[str]) -> Iterator[History]:
    """The history of each project, on its default branch if no other is chosen."""
    projects: dict[str, list[RunInfo]] = {}
    for run in run_queries.load_runs_after(engine, 0):
        projects.setdefault(run.project, []).append(run)
    for name, runs in projects.items():
        known, tips = list_commits(engine, name), find_state(engine, name).tips
        if branch:
            yield history_of_branch(runs, known, branch, commits, tips)
        else:
            yield history_of(runs, known, find_project(engine, name).default_branch, tips)


def _points(times: Mapping[int, list[float]], runs: Mapping[int, RunInfo]) -> tuple[SeriesPoint, ...]:
    measured = [(runs[key], median(found)) for key, found in times.items()]
    return tuple(SeriesPoint(run.id, run.commit, run.started, middle) for run, middle in measured)
