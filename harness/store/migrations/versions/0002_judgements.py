"""Acknowledged regressions and self-tests; statuses are counted by run.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "acknowledgement",
        sa.Column("id", KEY, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("case_id", sa.String(16), nullable=False),
        sa.Column("implementation", sa.String(64), nullable=False),
        sa.Column("device", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("until", sa.Date(), nullable=False),
        sa.Column("expected_ratio", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_acknowledgement"),
    )
    op.create_index("ix_acknowledgement_case_id", "acknowledgement", ["case_id"])
    op.create_table(
        "self_test",
        sa.Column("id", KEY, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("commit", sa.String(64), nullable=False),
        sa.Column("device", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_self_test"),
    )
    op.create_index("ix_self_test_kind_created", "self_test", ["kind", "created"])
    op.drop_index("ix_result_status", table_name="result")
    op.create_index("ix_result_run_id_status", "result", ["run_id", "status"])
