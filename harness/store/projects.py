"""Projects and their commits: settings, and the order and description of history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, delete, func, insert, select

from opgauge.harness.store.tables import CommitRow, ProjectRow, RunRow, TokenRow, WebhookRow

CHUNK = 500
"""Rows of one insert."""


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """Settings of a project.

    default_branch: branch whose runs are the history; empty for `main`, `master` or the most frequent one. forge:
    address of a commit, with `{sha}` in it. samples_days: age at which `opgauge db prune` drops raw samples; None
    for never.
    """

    name: str
    default_branch: str = ""
    forge: str = ""
    samples_days: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as git describes it."""

    sha: str
    parents: tuple[str, ...]
    committed: datetime
    author: str
    subject: str


def list_projects(engine: Engine) -> list[tuple[str, int, datetime]]:
    """Name of each project that has runs, the number of its runs, and the start of the latest, latest first."""
    last = func.max(RunRow.started)
    query = select(RunRow.project, func.count(), last).group_by(RunRow.project).order_by(last.desc())
    with engine.connect() as connection:
        return [(name, count, started) for name, count, started in connection.execute(query)]


def project_exists(engine: Engine, name: str) -> bool:
    """Whether a project has a run, settings, commits, or a token or webhook of its own."""
    columns = (RunRow.project, ProjectRow.name, CommitRow.project, TokenRow.project, WebhookRow.project)
    with engine.connect() as connection:
        return any(connection.execute(select(one).where(one == name).limit(1)).first() for one in columns)


def find_project(engine: Engine, name: str) -> ProjectSettings:
    """Settings of a project; the defaults if none are stored."""
    row = ProjectRow
    query = select(row.name, row.default_branch, row.forge, row.samples_days).where(row.name == name)
    with engine.connect() as connection:
        found = connection.execute(query).first()
    return ProjectSettings(*found) if found else ProjectSettings(name)


def save_project(engine: Engine, project: ProjectSettings) -> None:
    """Store the settings of a project."""
    with engine.begin() as connection:
        connection.execute(delete(ProjectRow).where(ProjectRow.name == project.name))
        connection.execute(insert(ProjectRow).values(asdict(project)))


def list_commits(engine: Engine, project: str) -> dict[str, Commit]:
    """Known commits of a project by SHA."""
    row = CommitRow
    query = select(row.sha, row.parents, row.committed, row.author, row.subject).where(row.project == project)
    with engine.connect() as connection:
        return {
            sha: Commit(sha, tuple(parents), committed, author, subject)
            for sha, parents, committed, author, subject in connection.execute(query)
        }


def add_commits(engine: Engine, project: str, commits: Iterable[Commit]) -> int:
    """Store commits that are not known yet; returns their number."""
    wanted = {one.sha: one for one in commits}
    added = 0
    shas = list(wanted)
    with engine.begin() as connection:
        for start in range(0, len(shas), CHUNK):
            some = shas[start : start + CHUNK]
            query = select(CommitRow.sha).where(CommitRow.project == project, CommitRow.sha.in_(some))
            known = set(connection.execute(query).scalars())
            rows = [_values(project, wanted[sha]) for sha in some if sha not in known]
            if rows:
                connection.execute(insert(CommitRow), rows)
            added += len(rows)
    return added


def _values(project: str, commit: Commit) -> dict[str, Any]:
    return {
        "project": project,
        "sha": commit.sha,
        "parents": list(commit.parents),
        "committed": commit.committed,
        "author": commit.author[:128],
        "subject": commit.subject[:256],
    }
