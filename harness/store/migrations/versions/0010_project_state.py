"""Projects know the tips of their branches, and how far their history was examined.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "project_state",
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("tips", sa.JSON(), nullable=False),
        sa.Column("examined", sa.Integer(), server_default="0", nullable=False),
        sa.Column("changes", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_project_state"),
    )
