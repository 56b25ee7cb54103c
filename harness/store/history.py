"""History of a project: which runs are part of it, and in which order.

The history has the clean runs of the default branch. Runs of other branches, pull requests and modified trees are
beside it and never enter it, as are runs of commits that the branch has lost. The order is that of the commits, not of
the measurements: an old commit that is measured later takes its place among the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from opgauge.harness.store.projects import Commit
from opgauge.harness.store.run_queries import RunInfo

USUAL_BRANCHES = ("main", "master", "trunk")
"""Names that a default branch usually has."""
EARLIEST, LATEST = datetime(1990, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Range of commit times that are believed: broken clocks and conversions give 1970, and arithmetic ends at 9999."""
AHEAD = timedelta(days=1)
"""Tolerance for clocks of committers that are ahead of the first run that measured the commit."""
SHA_LENGTHS = (40, 64)
"""Characters of a whole SHA: others may be of other programs."""
_STEP = timedelta(microseconds=1)


def is_believed(committed: datetime, measured: datetime | None) -> bool:
    """Whether a commit can be of that time: not long before version control, nor later than it was first measured."""
    return EARLIEST <= committed <= (LATEST if measured is None else measured + AHEAD)


def commit_time(run: RunInfo) -> datetime | None:
    """Time of a run's commit as the run gives it; None if it gives none, or one that is not believed."""
    found = run.committed
    return found if found is not None and is_believed(found, run.started) else None


def gives_wrong_time(run: RunInfo) -> bool:
    """Whether a run gives a time of its commit that is not believed."""
    return run.committed is not None and commit_time(run) is None


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


def history_of(
    runs: Sequence[RunInfo],
    commits: Mapping[str, Commit],
    configured: str = "",
    tips: Mapping[str, Sequence[str]] = MappingProxyType({}),
    reachable: Collection[str] = (),
) -> History:
    """The history of the runs of one project.

    commits: what is known of them, by SHA. tips: newest commits of each branch; commits that the branch had and lost,
    by a rebase for example, are beside it. reachable: commits that are on the branch, whatever the tips are.
    """
    branch = default_branch(runs, configured)
    whole = History(branch, dates=_dates(runs, commits))
    ordered = sorted(runs, key=whole.order)
    lost = lost_commits(runs, commits, tips.get(branch, ())) - set(reachable)
    inside = tuple(run for run in ordered if whole.contains(run) and run.sha not in lost)
    beside = tuple(run for run in ordered if not whole.contains(run) or run.sha in lost)
    # a project of modified trees only has no other runs to show
    return replace(whole, runs=inside or beside, beside=beside if inside else ())


def history_of_branch(
    runs: Iterable[RunInfo],
    commits: Mapping[str, Commit],
    branch: str,
    reachable: Collection[str] = (),
    tips: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> History:
    """The history of a branch of one project: its runs, and those of its `reachable` commits that name another."""
    found = [replace(run, branch=branch) for run in runs if run.branch == branch or run.sha in reachable]
    return history_of(found, commits, branch, tips, reachable)


def lost_commits(runs: Iterable[RunInfo], commits: Mapping[str, Commit], tips: Sequence[str]) -> frozenset[str]:
    """Measured commits that cannot be reached from the tip of their branch, and are older than it.

    None without a known tip, or where a shallow clone ends. The tip of the remote repository comes first in `tips`; a
    local branch that is ahead of it counts instead.
    """
    found = [_ancestors(one, commits) for one in tips if one in commits]
    if not found:
        return frozenset()
    inside = next((one for one in found[1:] if tips[0] in one), found[0])
    newest = max(commits[one].committed for one in inside)
    known_from = max(commits[one].committed for one in inside if not _has_parents(commits[one], commits))
    times = {run.sha: _time_of(run, commits) for run in runs if run.sha not in inside}
    return frozenset(sha for sha, when in times.items() if when is not None and known_from < when <= newest)


def _has_parents(commit: Commit, commits: Mapping[str, Commit]) -> bool:
    """Whether a commit has parents, and all of them are known."""
    return bool(commit.parents) and all(parent in commits for parent in commit.parents)


def _time_of(run: RunInfo, commits: Mapping[str, Commit]) -> datetime | None:
    """Time of a run's commit; None if it is unknown, or the name is no whole SHA."""
    if run.sha in commits:
        return commits[run.sha].committed
    return commit_time(run) if len(run.sha) in SHA_LENGTHS else None


def _ancestors(tip: str, commits: Mapping[str, Commit]) -> set[str]:
    """A commit and its known ancestors."""
    found, waiting = {tip}, [tip]
    while waiting:
        new = {one for one in commits[waiting.pop()].parents if one in commits} - found
        found |= new
        waiting += new
    return found


def _dates(runs: Sequence[RunInfo], commits: Mapping[str, Commit]) -> dict[int, datetime]:
    """Date of the commit of each run: of the commit itself if known and believed, else when it was first measured."""
    measured = first_measured(runs)
    first = dict(measured)
    for run in runs:
        if run.sha and (committed := commit_time(run)):
            first[run.sha] = committed
    corrected = corrected_dates(commits, measured)
    return {run.key: corrected.get(run.sha) or first.get(run.sha, run.started) for run in runs}


def first_measured(runs: Iterable[RunInfo]) -> dict[str, datetime]:
    """Start of the first run of each commit."""
    found: dict[str, datetime] = {}
    for run in runs:
        if run.sha:
            found[run.sha] = min(run.started, found.get(run.sha, run.started))
    return found


def corrected_dates(commits: Mapping[str, Commit], measured: Mapping[str, datetime]) -> dict[str, datetime]:
    """Dates of commits, moved behind those of their parents: clocks differ, the order of commits does not.

    measured: start of the first run of each commit. A date that is not believed is replaced by the earliest of
    its measurement and its children.
    """
    parents = {sha: {one for one in commit.parents if one in commits} for sha, commit in commits.items()}
    children: dict[str, list[str]] = {}
    for sha, known in parents.items():
        for parent in known:
            children.setdefault(parent, []).append(sha)
    missing = {sha: len(known) for sha, known in parents.items()}
    ready = [sha for sha, count in missing.items() if not count]
    for sha in ready:
        for child in children.get(sha, ()):
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    believed = _believed_dates(commits, ready, children, measured)
    found: dict[str, datetime] = {}
    for sha in ready:
        found[sha] = max([believed[sha], *(found[parent] + _STEP for parent in parents[sha])])
    return found


def _believed_dates(
    commits: Mapping[str, Commit],
    ordered: Sequence[str],
    children: Mapping[str, Sequence[str]],
    measured: Mapping[str, datetime],
) -> dict[str, datetime]:
    """Dates of commits that are `ordered`, parents first.

    Those that are not believed become the earliest of the measurement and the children.
    """
    # later than every run is later than now, also for a commit that was never measured
    last = max(measured.values(), default=None)
    found: dict[str, datetime] = {}
    for sha in reversed(ordered):
        own, first = commits[sha].committed, measured.get(sha)
        later = [*(found[child] for child in children.get(sha, ())), *filter(None, (first,))]
        found[sha] = own if is_believed(own, first or last) else min(later, default=EARLIEST)
    return found
