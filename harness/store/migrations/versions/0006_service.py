"""Projects, commits, audit log, webhooks, token limits; columns by which runs are ordered and grouped.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from opgauge.harness.result.result import Environment
from opgauge.harness.store.run_columns import run_columns

revision = "0006"
down_revision = "0005"
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def _text(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False, server_default="")


def upgrade() -> None:
    _extend_runs()
    for name, kind in (("project", sa.String(64)), ("expires", MOMENT), ("last_used", MOMENT)):
        op.add_column("token", sa.Column(name, kind))
    for column in (_text("project", 64), _text("recorded_by", 64), _text("withdrawn_by", 64)):
        op.add_column("acknowledgement", column)
    op.add_column("acknowledgement", sa.Column("withdrawn", MOMENT))
    op.create_table(
        "project",
        sa.Column("name", sa.String(64), nullable=False),
        _text("default_branch", 128),
        sa.Column("forge", sa.Text(), nullable=False, server_default=""),
        sa.Column("samples_days", sa.Integer()),
        sa.PrimaryKeyConstraint("name", name="pk_project"),
    )
    op.create_table(
        "commit_info",
        sa.Column("id", KEY, nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("sha", sa.String(64), nullable=False),
        sa.Column("parents", sa.JSON(), nullable=False),
        sa.Column("committed", MOMENT, nullable=False),
        sa.Column("author", sa.String(128), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_commit_info"),
        sa.UniqueConstraint("project", "sha", name="uq_commit_info_project_sha"),
    )
    _create_audit()
    _create_webhooks()


def _extend_runs() -> None:
    for column in (_text("project", 64), _text("branch", 128), _text("opgauge", 32), _text("submitter", 64)):
        op.add_column("run", column)
    op.add_column("run", sa.Column("dirty", sa.Boolean(), nullable=False, server_default=sa.false()))
    for name, kind in (("committed", MOMENT), ("digest", sa.String(64)), ("seen", MOMENT)):
        op.add_column("run", sa.Column(name, kind))
    op.create_index("ix_run_project_branch", "run", ["project", "branch"])
    run = sa.table(
        "run",
        sa.column("id", KEY),
        sa.column("environment", sa.Text),
        *(sa.column(name, sa.String) for name in ("project", "branch", "opgauge")),
        sa.column("dirty", sa.Boolean),
        sa.column("committed", MOMENT),
        sa.column("seen", MOMENT),
    )
    connection = op.get_bind()
    rows = connection.execute(sa.select(run.c.id, sa.cast(run.c.environment, sa.Text))).all()
    for key, text in rows:
        data = json.loads(text)
        found = run_columns(Environment(data.get("hard", {}), data.get("soft", {})))
        connection.execute(sa.update(run).where(run.c.id == key).values(**found, seen=datetime.now(UTC)))


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", KEY, nullable=False),
        sa.Column("created", MOMENT, nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("request", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_created", "audit", ["created"])


def _create_webhooks() -> None:
    op.create_table(
        "webhook",
        sa.Column("id", KEY, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("form", sa.String(16), nullable=False),
        sa.Column("events", sa.String(128), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("created", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook"),
        sa.UniqueConstraint("name", name="uq_webhook_name"),
    )
    op.create_table(
        "delivery",
        sa.Column("id", KEY, nullable=False),
        sa.Column("webhook_id", KEY, nullable=False),
        sa.Column("event", sa.String(128), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created", MOMENT, nullable=False),
        sa.Column("due", MOMENT, nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_delivery"),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhook.id"], name="fk_delivery_webhook_id", ondelete="CASCADE"),
        sa.UniqueConstraint("webhook_id", "event", name="uq_delivery_webhook_id_event"),
    )
    op.create_index("ix_delivery_state_due", "delivery", ["state", "due"])
