"""Deletion of runs, with the rows that belong to them alone."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from opgauge.harness.store.tables import CaseRow, DeletionRow, ResultRow, RunRow
from opgauge.harness.store.writer_lock import order_numbers


def delete_runs(engine: Engine, runs: Collection[str]) -> int:
    """Delete runs by id in one transaction: results, samples, achieved peaks, and cases without other results.

    Returns the number of runs that existed.
    """
    with Session(engine) as session, session.begin():
        # a submission that uses a case of these runs ends before it is known to be unused
        order_numbers(session.connection())
        found = session.execute(select(RunRow.id, RunRow.uuid).where(RunRow.uuid.in_(runs))).all()
        keys, now = [key for key, _ in found], datetime.now(UTC)
        session.add_all(DeletionRow(created=now, run=run) for _, run in found)
        cases = session.scalars(select(ResultRow.case_key).where(ResultRow.run_id.in_(keys)).distinct()).all()
        session.execute(delete(RunRow).where(RunRow.id.in_(keys)))
        used = select(ResultRow.case_key)
        session.execute(delete(CaseRow).where(CaseRow.id.in_(cases), CaseRow.id.not_in(used)))
        return len(keys)
