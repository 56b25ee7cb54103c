"""Alembic's entry point: migrates over the connection that opgauge.harness.store.schema passes."""

from __future__ import annotations

from alembic import context

from opgauge.harness.store.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
