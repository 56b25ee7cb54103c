"""History: clean runs of the default branch, in the order of their commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from opgauge.harness.result.result import Environment
from opgauge.harness.store.history import corrected_dates, default_branch, history_of
from opgauge.harness.store.projects import Commit
from opgauge.harness.store.run_queries import RunInfo

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_run(key: int, commit: str = "", **given: Any) -> RunInfo:
    """A run that was measured on the day `key` after the commits."""
    started = START + timedelta(days=20 + key)
    return RunInfo(key, str(key), started, None, "finished", commit, "", Environment({}, {}), **given)


def test_branches_and_modified_trees_are_beside() -> None:
    """Clean runs of main and runs without a branch are the history; others are shown beside it."""
    runs = [
        a_run(1, "a", branch="main"),
        a_run(2, "b", branch="topic"),
        a_run(3, "b-dirty", branch="main", dirty=True),
        a_run(4, "c"),
    ]
    found = history_of(runs, {})
    assert (found.branch, [run.key for run in found.runs], [run.key for run in found.beside]) == (
        "main",
        [1, 4],
        [2, 3],
    )


def test_the_order_is_that_of_the_commits() -> None:
    """An old commit measured later stands among the old ones; runs of one commit stand in order of measuring."""
    days = {key: START + timedelta(days=day) for key, day in ((1, 1), (2, 9), (3, 2), (4, 9))}
    runs = [a_run(key, f"{day.day:x}", branch="main", committed=day) for key, day in days.items()]
    assert [run.key for run in history_of(runs, {}).runs] == [1, 3, 2, 4]


def test_parents_come_before_children_whatever_their_clocks_say() -> None:
    """A commit dated before its parent is placed behind it, through commits that were not measured too."""
    runs = [a_run(1, "parent"), a_run(2, "child")]
    commits = {
        "parent": Commit("parent", (), START + timedelta(days=5), "", ""),
        "middle": Commit("middle", ("parent",), START + timedelta(days=4), "", ""),
        "child": Commit("child", ("middle", "unknown"), START, "", ""),
    }
    assert [run.key for run in history_of(runs, commits).runs] == [1, 2]
    assert [run.key for run in history_of(runs[::-1], {}).runs] == [1, 2]


def test_a_parent_that_is_a_sibling_too_comes_first() -> None:
    """A merge of a branch into its own base orders all three, and many thousand commits take no recursion."""
    late = START + timedelta(days=5)
    commits = {
        "merge": Commit("merge", ("base", "topic"), START, "", ""),
        "topic": Commit("topic", ("base",), START, "", ""),
        "base": Commit("base", (), late, "", ""),
    }
    found = corrected_dates(commits, {})
    assert late == found["base"] < found["topic"] < found["merge"]
    line = {str(n): Commit(str(n), (str(n - 1),) if n else (), START, "", "") for n in range(20_000, -1, -1)}
    assert len(corrected_dates(line, {})) == len(line)


def test_a_commit_measured_again_without_its_time_keeps_its_place() -> None:
    """Without commit times a commit stands where it was first measured."""
    runs = [a_run(1, "a"), a_run(2, "b"), a_run(3, "a")]
    assert [run.key for run in history_of(runs, {}).runs] == [1, 3, 2]


IMPOSSIBLE = (
    datetime(2099, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    START + timedelta(days=23),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
)
"""Times of a commit that was measured on day 21."""


@pytest.mark.parametrize("when", IMPOSSIBLE)
def test_a_commit_time_that_cannot_be_is_not_believed(when: datetime) -> None:
    """The commit stands where it was measured, or where another run of it says; neither first nor last for ever."""
    before, after = START + timedelta(days=20.5), START + timedelta(days=21.5)
    runs = [a_run(1, "wrong", committed=when), a_run(2, "x", committed=before), a_run(3, "y", committed=after)]
    found = history_of(runs, {})
    assert [run.key for run in found.runs] == [2, 1, 3]
    assert found.dates[1] == runs[0].started
    right = a_run(4, "wrong", committed=START)
    assert [run.key for run in history_of([*runs, right], {}).runs] == [1, 4, 2, 3]


def test_a_clock_that_is_an_hour_ahead_is_believed() -> None:
    """The committer's; a day is the tolerance."""
    run = a_run(1, "a", committed=START + timedelta(days=21, hours=1))
    assert history_of([run], {}).dates[1] == run.committed


@pytest.mark.parametrize("when", [*IMPOSSIBLE[:2], *IMPOSSIBLE[3:]])
@pytest.mark.parametrize("measured", [(1, 2, 3), (1, 3), (1, 2), (3,)])
def test_a_commit_that_git_dates_impossibly_drags_no_other_along(when: datetime, measured: tuple[int, ...]) -> None:
    """It stands between its parent and its child, whose dates stay as they are."""
    days = [START + timedelta(days=day) for day in range(3)]
    commits = {
        "1": Commit("1", (), days[0], "", ""),
        "2": Commit("2", ("1",), when, "", ""),
        "3": Commit("3", ("2",), days[2], "", ""),
        "4": Commit("4", ("3",), when, "", ""),
    }
    runs = [a_run(key, str(key)) for key in measured]
    dates = history_of(runs, commits).dates
    assert [run.key for run in history_of(runs[::-1], commits).runs] == list(measured)
    assert all(abs(date - days[min(key, 3) - 1]) < timedelta(days=2) for key, date in dates.items())


def test_the_default_branch() -> None:
    """As configured, else main or master, else the branch with most clean runs."""
    topic, master = a_run(1, branch="topic"), a_run(2, branch="master")
    assert default_branch([topic, topic, master]) == "master"
    assert default_branch([topic, topic, master], "topic") == "topic"
    assert default_branch([topic, a_run(3, branch="other", dirty=True)]) == "topic"
    assert default_branch([a_run(4)]) == ""


def test_a_project_of_modified_trees_shows_them() -> None:
    """Where nothing clean was ever measured, the modified trees are what there is."""
    runs = [a_run(1, "a-dirty", branch="main", dirty=True)]
    assert [run.key for run in history_of(runs, {}).runs] == [1]


def chain(*shas: str, day: int = 1, parent: str = "") -> dict[str, Commit]:
    """Commits, one a day, each the child of the one before."""
    found, last = {}, parent
    for place, sha in enumerate(shas):
        found[sha] = Commit(sha, (last,) if last else (), START + timedelta(days=day + place), "", "")
        last = sha
    return found


REBASED = {**chain("a", "b", "c"), **chain("B", "C", day=5, parent="a")}
"""Commits b and c were on a branch, which was rebased to B and C."""


@pytest.mark.parametrize(
    ("tips", "inside"),
    [
        ({"main": ["C"]}, [1, 4, 5]),
        ({"main": ["C", "c"]}, [1, 4, 5]),  # a local branch that was only fetched
        ({"main": ["a", "C"]}, [1, 4, 5]),  # commits that are not pushed yet
        ({"other": ["C"]}, [1, 2, 3, 4, 5]),
        ({"main": ["unknown"]}, [1, 2, 3, 4, 5]),
    ],
)
def test_commits_that_a_rebase_removed_are_beside(tips: dict[str, list[str]], inside: list[int]) -> None:
    """As far as the tip of the branch is known."""
    runs = [a_run(key, sha, branch="main") for key, sha in enumerate("abcBC", 1)]
    assert [run.key for run in history_of(runs, REBASED, tips=tips).runs] == inside
    assert len(history_of(runs, REBASED, tips=tips, reachable="bc").runs) >= 4


def test_a_commit_that_was_rebased_before_it_was_read_is_beside() -> None:
    """Also where only its run tells its time; newer ones, and names that are no whole SHA, are not known to be lost."""
    days = {"d" * 40: 3, "e" * 40: 30, "e" * 7: 3}
    runs = [
        a_run(key, sha, branch="main", committed=START + timedelta(days=day))
        for key, (sha, day) in enumerate(days.items(), 1)
    ]
    assert [run.sha[:8] for run in history_of(runs, REBASED, tips={"main": ["C"]}).beside] == ["d" * 8]


def test_what_a_shallow_clone_lacks_is_not_lost() -> None:
    """A clone of one commit says nothing of those before it."""
    runs = [a_run(key, sha, branch="main") for key, sha in enumerate("abcBC", 1)]
    shallow = {**REBASED, "X": Commit("X", (), START + timedelta(days=9), "", "")}
    assert len(history_of(runs, shallow, tips={"main": ["X"]}).runs) == 5
    parent = {**REBASED, "X": Commit("X", ("missing",), START + timedelta(days=9), "", "")}
    assert len(history_of(runs, parent, tips={"main": ["X"]}).runs) == 5
