"""History: clean runs of the default branch, in the order of their commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from opgauge.harness.result.result import Environment
from opgauge.harness.store.history import corrected_dates, default_branch, history_of
from opgauge.harness.store.projects import Commit
from opgauge.harness.store.run_queries import RunInfo

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_run(key: int, commit: str = "", **given: Any) -> RunInfo:
    """A run that was measured on day `key`."""
    started = START + timedelta(days=key)
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
    found = corrected_dates(commits)
    assert late == found["base"] < found["topic"] < found["merge"]
    line = {str(n): Commit(str(n), (str(n - 1),) if n else (), START, "", "") for n in range(20_000, -1, -1)}
    assert len(corrected_dates(line)) == len(line)


def test_a_commit_measured_again_without_its_time_keeps_its_place() -> None:
    """Without commit times a commit stands where it was first measured."""
    runs = [a_run(1, "a"), a_run(2, "b"), a_run(3, "a")]
    assert [run.key for run in history_of(runs, {}).runs] == [1, 3, 2]


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
