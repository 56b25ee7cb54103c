"""The index of a case's history has its times too; deletions are counted; times that are none become errors.

A history of a thousand runs then reads no row of the table. Times such as NaN or -1, which nothing refused, made pages
fail: JSON has no NaN, and SQLite reads no other field of JSON that has one.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import json
import math
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

COLUMNS = ["case_key", "device", "run_id", "implementation", "block", "status", "median_ns"]
MOST = 1e18
REASON = "its samples have values that are no times"
TIMES = ("median_ns", "low_ns", "high_ns")
RESULT = sa.table(
    "result",
    *(sa.column(name) for name in ("id", "status", "reason", *TIMES)),
    sa.column("data", sa.JSON),
)
SAMPLE = sa.table("sample", sa.column("result_id"))


def upgrade() -> None:
    op.drop_index("ix_result_case_key_device_run_id_implementation", table_name="result")
    op.create_index("ix_result_history", "result", COLUMNS)
    op.create_table(
        "deletion",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run", sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deletion"),
    )
    _end_times_that_are_none()


def _end_times_that_are_none() -> None:
    connection = op.get_bind()
    wrong: Any = sa.or_(*(sa.or_(RESULT.c[name] < 0, RESULT.c[name] > MOST) for name in TIMES))
    if connection.dialect.name == "sqlite":
        wrong = sa.or_(wrong, sa.func.json_valid(RESULT.c.data) == 0)
    found = connection.execute(sa.select(RESULT.c.id, sa.cast(RESULT.c.data, sa.Text)).where(wrong)).all()
    for key, text in found:
        data = _finite(json.loads(text))
        data.pop("quantiles_ns", None)
        data |= {"status": "error", "reason": REASON, "measurement": None}
        values = {"status": "error", "reason": REASON, "data": data, **dict.fromkeys(TIMES)}
        connection.execute(sa.update(RESULT).where(RESULT.c.id == key).values(**values))
        connection.execute(sa.delete(SAMPLE).where(SAMPLE.c.result_id == key))


def _finite(value: Any) -> Any:
    """Plain JSON with null for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
