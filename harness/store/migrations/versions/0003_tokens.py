"""Tokens, and parts of runs on their way in.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "token",
        sa.Column("id", KEY, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("name", name="uq_token_name"),
        sa.UniqueConstraint("digest", name="uq_token_digest"),
    )
    op.create_table(
        "part",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("received", sa.DateTime(timezone=True), nullable=False),
        sa.Column("results", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_part"),
        sa.UniqueConstraint("run", "number", name="uq_part_run_number"),
    )
    op.create_index("ix_part_received", "part", ["received"])
