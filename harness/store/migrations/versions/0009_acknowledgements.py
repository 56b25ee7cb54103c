"""Acknowledgements name the regression that they are of.

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
