"""Regressions keep their keys when runs move the beginning.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "regression_key",
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("first", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_regression_key"),
    )
