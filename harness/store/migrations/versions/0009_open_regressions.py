"""Acknowledgements name the regression that they are of; open regressions stay known.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("acknowledgement", sa.Column("regression", sa.String(16), nullable=False, server_default=""))
    op.create_table(
        "open_regression",
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_open_regression"),
    )
