"""Results of a case are found by device and run: what its history asks for.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.drop_index("ix_result_case_key_implementation_device_run_id", table_name="result")
    op.create_index(
        "ix_result_case_key_device_run_id_implementation", "result", ["case_key", "device", "run_id", "implementation"]
    )
