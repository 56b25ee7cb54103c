"""History of a project: which runs are part of it, and in which order.

The history has the clean runs of the default branch. Runs of other branches, pull requests and modified trees are
beside it and never enter it. The order is that of the commits, not of the measurements: an old commit that is
measured later takes its place among the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from opgauge.harness.store.projects import Commit
from opgauge.harness.store.run_queries import RunInfo

USUAL_BRANCHES = ("main", "master", "trunk")
"""Names that a default branch usually has."""
_STEP = timedelta(microseconds=1)


def default_branch(runs: Iterable[RunInfo], configured: str = "") -> str:
    """The branch of the history: as configured, a usual name that has clean runs, or the one with most of them.

    Falls back on modified trees if there is nothing else; empty if no run has a branch.
    """
    if configured:
        return configured
    known = list(runs)
    counted = Counter(run.branch for run in known if run.branch and not run.dirty)
    counted = counted or Counter(run.branch for run in known if run.branch)
    usual = next((name for name in USUAL_BRANCHES if counted[name]), "")
    return usual or max(counted, key=lambda name: (counted[name], name), default="")


@dataclass(frozen=True)
class History:
    """The runs of a project by their part in its history.

    branch: whose runs are the history. runs: those of the history, oldest commit first. beside: all others, oldest
    first. dates: date of the commit of each run by its number, never before those of the commit's parents.
    """

    branch: str = ""
    runs: tuple[RunInfo, ...] = ()
    beside: tuple[RunInfo, ...] = ()
    dates: Mapping[int, datetime] = field(default_factory=dict)

    def order(self, run: RunInfo) -> tuple[datetime, str, datetime, int]:
        """Sort key of a run: its commit's place, then when it was measured."""
        return self.dates.get(run.key, run.started), run.sha, run.started, run.key

    def contains(self, run: RunInfo) -> bool:
        """Whether a run is part of the history."""
        return not run.dirty and run.branch in {"", self.branch}


def history_of(runs: Sequence[RunInfo], commits: Mapping[str, Commit], configured: str = "") -> History:
    """The history of the runs of one project. commits: what is known of them, by SHA."""
    branch = default_branch(runs, configured)
    dates = _dates(runs, commits)
    whole = History(branch, dates=dates)
    ordered = sorted(runs, key=whole.order)
    inside = tuple(run for run in ordered if whole.contains(run))
    beside = tuple(run for run in ordered if not whole.contains(run))
    if not inside:
        # a project of modified trees only has no other runs to show
        inside, beside = beside, ()
    return History(branch, inside, beside, dates)


def history_of_branch(
    runs: Iterable[RunInfo], commits: Mapping[str, Commit], branch: str, reachable: Collection[str] = ()
) -> History:
    """The history of a branch of one project: its runs, and those of its `reachable` commits that name another."""
    found = [replace(run, branch=branch) for run in runs if run.branch == branch or run.sha in reachable]
    return history_of(found, commits, branch)


def _dates(runs: Sequence[RunInfo], commits: Mapping[str, Commit]) -> dict[int, datetime]:
    """Date of the commit of each run: of the commit itself if known, else when it was first measured."""
    first: dict[str, datetime] = {}
    for run in runs:
        if run.sha:
            date = run.committed or run.started
            first[run.sha] = min(date, first.get(run.sha, date))
    for run in runs:
        if run.sha and run.committed:
            first[run.sha] = run.committed
    corrected = corrected_dates(commits)
    return {run.key: corrected.get(run.sha) or first.get(run.sha, run.started) for run in runs}


def corrected_dates(commits: Mapping[str, Commit]) -> dict[str, datetime]:
    """Dates of commits, moved behind those of their parents: clocks differ, the order of commits does not."""
    parents = {sha: {one for one in commit.parents if one in commits} for sha, commit in commits.items()}
    children: dict[str, list[str]] = {}
    for sha, known in parents.items():
        for parent in known:
            children.setdefault(parent, []).append(sha)
    missing = {sha: len(known) for sha, known in parents.items()}
    ready = [sha for sha, count in missing.items() if not count]
    found: dict[str, datetime] = {}
    for sha in ready:
        found[sha] = max([commits[sha].committed, *(found[parent] + _STEP for parent in parents[sha])])
        for child in children.get(sha, ()):
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    return found
