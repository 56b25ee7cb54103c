"""Queries of runs: listed, counted, found by the beginning of an id."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine, Text, bindparam, cast, func

from opgauge.harness import json_text
from opgauge.harness.result.record_json import from_json
from opgauge.harness.result.result import Environment
from opgauge.harness.store.columns import RUN, chunks, select
from opgauge.harness.store.tables import (
    RunRow,
)

RUNS = 2000
"""Runs of one list."""
UUID_LENGTH = 36
"""Characters of a run's id."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run without its results. key: its number in this database; id: its UUID.

    committed: time of the commit. dirty: whether the measured files differed from it. submitter: name of the token.
    """

    key: int
    id: str
    started: datetime
    finished: datetime | None
    status: str
    commit: str
    command: str
    environment: Environment
    project: str = ""
    branch: str = ""
    committed: datetime | None = None
    dirty: bool = False
    submitter: str = ""

    @property
    def sha(self) -> str:
        """The commit without its suffix for modified files; empty if unknown."""
        return self.commit.removesuffix("-dirty")


_RUNS = select(
    *(RUN.id, RUN.uuid, RUN.started, RUN.finished, RUN.status, RUN.commit, RUN.command, cast(RUN.environment, Text)),
    *(RUN.project, RUN.branch, RUN.committed, RUN.dirty, RUN.submitter),
)
_RUN_OF_ID = _RUNS.where(RUN.uuid == bindparam("uuid"))


def list_runs(
    engine: Engine,
    *,
    limit: int = RUNS,
    offset: int = 0,
    status: str | None = None,
    commit: str | None = None,
    before: datetime | None = None,
    keys: Collection[int] | None = None,
    project: str | None = None,
    branch: str | None = None,
) -> list[RunInfo]:
    """Runs, latest first; `commit` is the beginning of one, `keys` selects by number."""
    ordered = _RUNS.order_by(RUN.started.desc(), RUN.id.desc()).limit(limit).offset(offset)
    query = _chosen(ordered, status, commit, project, branch)
    if before is not None:
        query = query.where(RUN.started < before)
    if keys is not None:
        query = query.where(RUN.id.in_(keys))
    with engine.connect() as connection:
        return [_run(row) for row in connection.execute(query).all()]


def count_runs(
    engine: Engine,
    *,
    status: str | None = None,
    commit: str | None = None,
    project: str | None = None,
    branch: str | None = None,
) -> int:
    """Number of runs."""
    query = _chosen(select(func.count(RunRow.id)), status, commit, project, branch)
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def load_runs_after(engine: Engine, after: int, again: Collection[int] = ()) -> list[RunInfo]:
    """Runs with numbers above `after`, and those in `again`, in any order."""
    query = _RUNS.where(RUN.id > after)
    with engine.connect() as connection:
        found = [_run(row) for row in connection.execute(query).all()]
        for keys in chunks(again):
            found += [_run(row) for row in connection.execute(_RUNS.where(RUN.id.in_(keys))).all()]
    return found


def mark_runs(engine: Engine) -> tuple[int, int]:
    """Number of runs, and the largest key: runs were deleted if they do not fit what is known."""
    with engine.connect() as connection:
        count, last = connection.execute(select(func.count(RunRow.id), func.max(RunRow.id))).one()
    return count, last or 0


def find_runs(engine: Engine, beginning: str, limit: int = 2, project: str | None = None) -> list[RunInfo]:
    """Runs whose id begins with `beginning`."""
    # no index serves prefixes, so whole ids, which pages and programs use, have a query of their own
    is_whole = len(beginning) == UUID_LENGTH
    query = _RUN_OF_ID if is_whole else _RUNS.where(RUN.uuid.startswith(beginning, autoescape=True)).limit(limit)
    if project is not None:
        query = query.where(RUN.project == project)
    with engine.connect() as connection:
        return [_run(row) for row in connection.execute(query, {"uuid": beginning} if is_whole else {}).all()]


def _chosen(
    query: Any, status: str | None, commit: str | None, project: str | None = None, branch: str | None = None
) -> Any:
    if project is not None:
        query = query.where(RunRow.project == project)
    if branch is not None:
        query = query.where(RunRow.branch == branch)
    if status:
        query = query.where(RunRow.status == status)
    if commit:
        query = query.where(RunRow.commit.startswith(commit, autoescape=True))
    return query


def _run(row: Any) -> RunInfo:
    key, uuid, started, finished, status, commit, command, environment, *rest = row
    return RunInfo(key, uuid, started, finished, status, commit, command, _environment(environment), *rest)


@lru_cache(maxsize=4096)
def _environment(text: str) -> Environment:
    """The environment in a JSON text, shared by runs with the same text."""
    return from_json(Environment, json_text.read(text))
