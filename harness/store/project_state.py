"""State of a project beside its settings: tips of its branches, and how far its history was examined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import JSON, Engine, Integer, String, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column

from opgauge.harness.store.tables import Table


class ProjectStateRow(Table):
    """State of a project. changes: number of changes to it and to the settings, so that services notice."""

    __tablename__ = "project_state"

    project: Mapped[str] = mapped_column(String(64), primary_key=True)
    tips: Mapped[dict[str, list[str]]] = mapped_column(JSON)
    examined: Mapped[int] = mapped_column(Integer, server_default="0")
    changes: Mapped[int] = mapped_column(Integer, server_default="0")


@dataclass(frozen=True, slots=True)
class ProjectState:
    """State of a project.

    tips: newest commits of each branch, that of the remote repository first. examined: number of the last run up to
    which the history was searched for regressions.
    """

    tips: Mapping[str, list[str]] = field(default_factory=dict)
    examined: int = 0


def find_state(engine: Engine, project: str) -> ProjectState:
    """State of a project; empty if none is stored."""
    row = ProjectStateRow
    with engine.connect() as connection:
        found = connection.execute(select(row.tips, row.examined).where(row.project == project)).first()
    return ProjectState(*found) if found else ProjectState()


def change_state(engine: Engine, project: str, *, is_news: bool = True, **values: Any) -> None:
    """Store some values of a project's state. is_news: count it as a change, at which services look anew."""
    row = ProjectStateRow
    with engine.begin() as connection:
        changed = update(row).where(row.project == project).values(**values, changes=row.changes + int(is_news))
        if not connection.execute(changed).rowcount:
            given = {"project": project, "tips": {}, "changes": int(is_news), **values}
            connection.execute(insert(row).values(given))
