"""Runs, ceilings, cases, results and samples.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", KEY, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished", sa.DateTime(timezone=True)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("commit", sa.String(64), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("uuid", name="uq_run_uuid"),
    )
    op.create_index("ix_run_commit", "run", ["commit"])
    op.create_index("ix_run_started", "run", ["started"])
    op.create_table(
        "case",
        sa.Column("id", KEY, nullable=False),
        sa.Column("case_id", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("op", sa.String(64), nullable=False),
        sa.Column("dtype", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_case"),
        sa.UniqueConstraint("digest", name="uq_case_digest"),
    )
    op.create_index("ix_case_case_id", "case", ["case_id"])
    op.create_index("ix_case_op", "case", ["op"])
    op.create_table(
        "ceiling",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("device", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ceiling"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_ceiling_run_id", ondelete="CASCADE"),
        sa.UniqueConstraint("run_id", "device", name="uq_ceiling_run_id_device"),
    )
    op.create_table(
        "result",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("case_key", KEY, nullable=False),
        sa.Column("implementation", sa.String(64), nullable=False),
        sa.Column("backend", sa.String(8), nullable=False),
        sa.Column("device", sa.String(16), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("median_ns", sa.Float(53)),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("flops", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_result"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_result_run_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["case_key"], ["case.id"], name="fk_result_case_key"),
        sa.UniqueConstraint(
            "run_id",
            "case_key",
            "implementation",
            "device",
            "block",
            name="uq_result_run_id_case_key_implementation_device_block",
        ),
    )
    op.create_index("ix_result_status", "result", ["status"])
    op.create_index(
        "ix_result_case_key_implementation_device_run_id",
        "result",
        ["case_key", "implementation", "device", "run_id"],
    )
    op.create_table(
        "sample",
        sa.Column("result_id", KEY, nullable=False),
        sa.Column("samples_ns", sa.LargeBinary(), nullable=False),
        sa.Column("cpu_ns", sa.LargeBinary(), nullable=False),
        sa.Column("clock_mhz", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("result_id", name="pk_sample"),
        sa.ForeignKeyConstraint(["result_id"], ["result.id"], name="fk_sample_result_id", ondelete="CASCADE"),
    )
