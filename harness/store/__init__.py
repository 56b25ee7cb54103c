"""Where results are kept: SQLite by default, PostgreSQL by URL."""

from opgauge.harness.store.store import Run, Store

__all__ = ["Run", "Store"]
