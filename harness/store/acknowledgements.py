"""Acknowledged regressions: list, add, withdraw."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

from sqlalchemy import Engine, insert, update

from opgauge.harness.store.columns import select
from opgauge.harness.store.tables import (
    AcknowledgementRow,
)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An acknowledged regression and its owner, valid until a day.

    regression: key of the regression; empty in those of schema 0008, which are of every one of the series. key: number
    of the acknowledgement, 0 before it is stored.
    """

    case_id: str
    implementation: str
    device: str
    verdict: str
    owner: str
    reason: str
    until: date
    expected_ratio: float | None
    created: datetime
    project: str = ""
    recorded_by: str = ""
    regression: str = ""
    key: int = 0


def list_acknowledgements(engine: Engine, limit: int = 1000, project: str | None = None) -> list[Acknowledgement]:
    """The latest acknowledgements that are not withdrawn, newest first."""
    row = AcknowledgementRow
    query = select(
        row.case_id,
        row.implementation,
        row.device,
        row.verdict,
        row.owner,
        row.reason,
        row.until,
        row.expected_ratio,
        row.created,
        row.project,
        row.recorded_by,
        row.regression,
        row.id,
    ).where(row.withdrawn.is_(None))
    if project is not None:
        query = query.where(row.project == project)
    with engine.connect() as connection:
        return [Acknowledgement(*one) for one in connection.execute(query.order_by(row.id.desc()).limit(limit))]


def add_acknowledgement(engine: Engine, given: Acknowledgement) -> None:
    """Store an acknowledgement."""
    values = {name: getattr(given, name) for name in Acknowledgement.__slots__ if name != "key"}
    with engine.begin() as connection:
        connection.execute(insert(AcknowledgementRow).values(values))


def withdraw_acknowledgement(engine: Engine, key: int, withdrawn_by: str) -> bool:
    """Withdraw an acknowledgement, so that its regression is open again; False if none was in force."""
    row = AcknowledgementRow
    change = update(row).where(row.id == key, row.withdrawn.is_(None))
    with engine.begin() as connection:
        done = connection.execute(change.values(withdrawn=datetime.now(UTC), withdrawn_by=withdrawn_by))
        return bool(done.rowcount)
