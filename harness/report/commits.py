"""Commits of a repository, read with git."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from opgauge.harness.errors import RefError
from opgauge.harness.project.git import run_git
from opgauge.harness.store.projects import Commit

FORMAT = "%H%x1f%P%x1f%cI%x1f%an%x1f%s"
"""Format of `git log`: hash, parents, time, author, subject."""


def read_commits(tree: Path, limit: int = 5000) -> list[Commit]:
    """The latest commits of all branches. Raises RefError if `tree` is no repository."""
    done = run_git(tree, "log", "--branches", "--remotes", "HEAD", f"--format={FORMAT}", f"-n{limit}")
    if done.returncode:
        msg = f"{tree}: {done.stderr.strip()[-300:]}"
        raise RefError(msg)
    lines = done.stdout.split("\n")
    return [_commit(line) for line in lines if line.count("\x1f") == 4]


def read_tips(tree: Path) -> dict[str, list[str]]:
    """The newest commits of each branch: that of the remote repository first, then the local one."""
    done = run_git(tree, "for-each-ref", "--format=%(refname) %(objectname)", "refs/remotes/origin", "refs/heads")
    found: dict[str, list[str]] = {}
    for line in sorted(done.stdout.splitlines(), key=lambda one: not one.startswith("refs/remotes/")):
        name, _, sha = line.rpartition(" ")
        branch = name.removeprefix("refs/remotes/origin/").removeprefix("refs/heads/")
        found.setdefault(branch, []).append(sha)
    return found


def _commit(line: str) -> Commit:
    sha, parents, committed, author, subject = line.split("\x1f")
    return Commit(sha, tuple(parents.split()), datetime.fromisoformat(committed), author, subject)
