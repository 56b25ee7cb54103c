"""The database of results: SQLite by default, PostgreSQL by URL."""

from opgauge.harness.store.store import Run, Store

__all__ = ["Run", "Store"]
