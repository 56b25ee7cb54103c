"""Abandoned runs: their process was killed (SIGKILL, power loss, full disk), or sends nothing more.

They are marked as interrupted, since they would stay `running`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, select, update
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from opgauge.harness.run.liveness import is_gone, process_identity
from opgauge.harness.store.tables import RunRow

PROCESS = "process"
"""Entry of a running run's environment (soft): the process that writes it."""
LOST_AFTER = timedelta(hours=1)
"""Time without a result after which a running run counts as lost; a trial may take minutes."""


def with_process(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment as JSON, with the identity of this process."""
    return {**environment, "soft": {**environment.get("soft", {}), PROCESS: process_identity()}}


def without_process(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment as JSON, without the identity of a process."""
    soft = {key: value for key, value in environment.get("soft", {}).items() if key != PROCESS}
    return {**environment, "soft": soft}


def mark_abandoned(engine: Engine) -> None:
    """Mark running runs whose process has ended as interrupted; a database that is not writable is left unchanged."""
    with suppress(DatabaseError), Session(engine) as session, session.begin():
        for row in session.scalars(select(RunRow).where(RunRow.status == "running")):
            soft = row.environment.get("soft")
            identity = soft.get(PROCESS, "") if isinstance(soft, dict) else ""
            if identity and is_gone(identity):
                row.status = "interrupted"
                row.environment = without_process(row.environment)


def end_lost_runs(engine: Engine, now: datetime | None = None) -> int:
    """Mark lost runs as interrupted; returns their number.

    A run is lost if it is `running` without a result for `LOST_AFTER`. It ended at its last sign of life.
    """
    until = (now or datetime.now(UTC)) - LOST_AFTER
    lost = (RunRow.status == "running") & (func.coalesce(RunRow.seen, RunRow.started) < until)
    with engine.begin() as connection:
        if connection.execute(select(RunRow.id).where(lost).limit(1)).first() is None:
            return 0
        end = func.coalesce(RunRow.seen, RunRow.started)
        return connection.execute(update(RunRow).where(lost).values(status="interrupted", finished=end)).rowcount
