"""The audit log: submissions, acknowledgements, refusals and administration, in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, insert, select

from opgauge.harness.store.tables import AuditRow

SUBJECT_LENGTH, DETAIL_LENGTH, SHORT_LENGTH = 256, 2000, 64
"""Lengths of the columns subject, detail, and of the short ones."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the audit log. actor: name of the token, empty if none was valid. request: id of the request."""

    created: datetime
    actor: str
    action: str
    subject: str
    detail: str
    address: str
    request: str


def add_audit(
    engine: Engine,
    actor: str,
    action: str,
    subject: str,
    detail: str = "",
    *,
    address: str = "",
    request: str = "",
) -> None:
    """Append an entry; texts are truncated to the length of their columns."""
    values = {
        "created": datetime.now(UTC),
        "actor": actor[:SHORT_LENGTH],
        "action": action[:32],
        "subject": subject[:SUBJECT_LENGTH],
        "detail": detail[:DETAIL_LENGTH],
        "address": address[:SHORT_LENGTH],
        "request": request[:32],
    }
    with engine.begin() as connection:
        connection.execute(insert(AuditRow).values(values))


def list_audit(engine: Engine, limit: int = 100, *, action: str | None = None) -> list[AuditEntry]:
    """The latest entries, newest first; of one action if given."""
    row = AuditRow
    query = select(row.created, row.actor, row.action, row.subject, row.detail, row.address, row.request)
    if action is not None:
        query = query.where(row.action == action)
    with engine.connect() as connection:
        return [AuditEntry(*found) for found in connection.execute(query.order_by(row.id.desc()).limit(limit))]
