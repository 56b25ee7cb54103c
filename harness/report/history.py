"""History of a case: one point per run, in order of commits, and its changes of level.

A series is a case by one implementation on one device of machines with the same hard entries. On a branch: only runs of
commits that are on it, or that name it themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
    """Points in order of commits, then of runs. machine: entries that decide whether times are comparable, in words."""

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

    commits: those on `branch`, if git knows. since: start of the first run.
    """
    cases = _cases(engine, pattern)
    runs = {
        run.key: run
        for run in run_queries.list_runs(engine)
        if (branch is None or _is_on(run, branch, commits)) and (since is None or run.started >= since)
    }
    times: dict[tuple[Subject, str], dict[int, list[float]]] = {}
    for point in queries.list_series(engine, cases.keys(), runs.keys()):
        run = runs[point.run_key]
        if point.median_ns is None or point.status != Status.OK:
            continue
        if (device and point.device != device) or (implementations and point.implementation not in implementations):
            continue
        info = cases[point.case_key]
        subject = Subject(info.op, info.name, info.case_id, point.implementation, point.device)
        machine = ", ".join(f"{key} {value}" for key, value in sorted(run.environment.hard_of(point.device).items()))
        times.setdefault((subject, machine), {}).setdefault(point.run_key, []).append(point.median_ns)
    if not times:
        where = f" on {branch}" if branch else ""
        msg = f"no stored result of {pattern}{where}; `opgauge run` stores some"
        raise NothingError(msg)
    return [Series(subject, machine, _points(found, runs)) for (subject, machine), found in times.items()]


def as_plain(series: Series, least_ratio: float = 1.0) -> dict[str, Any]:
    """A series as plain JSON."""
    return {
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


def _is_on(run: RunInfo, branch: str, commits: Collection[str]) -> bool:
    return run.branch == branch or run.commit.removesuffix("-dirty") in commits


def _points(times: dict[int, list[float]], runs: dict[int, RunInfo]) -> tuple[SeriesPoint, ...]:
    ordered: Iterable[RunInfo] = sorted((runs[key] for key in times), key=_order)
    return tuple(SeriesPoint(run.id, run.commit, run.started, median(times[run.key])) for run in ordered)


def _order(run: RunInfo) -> tuple[datetime, datetime, int]:
    return run.committed or run.started, run.started, run.key
