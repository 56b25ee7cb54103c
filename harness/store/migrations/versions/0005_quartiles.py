"""Quartiles of results as columns: histories read them by the hundred, and JSON is slow to look into.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

COLUMNS = ("low_ns", "high_ns")
RESULT = sa.table("result", sa.column("data", sa.JSON), *(sa.column(name, sa.Float(53)) for name in COLUMNS))


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("result", sa.Column(name, sa.Float(53)))
    low, high = (RESULT.c.data[("quantiles_ns", place)].as_float() for place in (1, 2))
    op.execute(sa.update(RESULT).values(low_ns=low, high_ns=high))
