"""Outcomes of self-tests of the gate: list, add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, insert

from opgauge.harness.store.columns import select
from opgauge.harness.store.tables import SelfTestRow

KINDS = ("aa", "inject", "agree", "cheats")
"""Kinds of self-tests."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Outcome of a self-test of the gate."""

    kind: str
    created: datetime
    commit: str
    device: str
    data: Mapping[str, Any]


def list_self_tests(engine: Engine, kind: str, limit: int = 20) -> list[SelfTest]:
    """The latest self-tests of a kind, newest first."""
    row = SelfTestRow
    query = select(row.kind, row.created, row.commit, row.device, row.data).where(row.kind == kind)
    with engine.connect() as connection:
        found = connection.execute(query.order_by(row.created.desc(), row.id.desc()).limit(limit))
        return [SelfTest(*one) for one in found]


def add_self_test(engine: Engine, given: SelfTest) -> None:
    """Store the outcome of a self-test."""
    values = {name: getattr(given, name) for name in SelfTest.__slots__}
    with engine.begin() as connection:
        connection.execute(insert(SelfTestRow).values(values))


def add_new(engine: Engine, given: Iterable[SelfTest]) -> int:
    """Store self-tests that are not there yet; returns how many."""
    row, added = SelfTestRow, 0
    for one in given:
        same = (row.kind == one.kind, row.created == one.created, row.commit == one.commit, row.device == one.device)
        with engine.connect() as connection:
            is_known = connection.execute(select(row.id).where(*same).limit(1)).first() is not None
        if not is_known:
            add_self_test(engine, one)
            added += 1
    return added
