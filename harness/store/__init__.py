"""The database of results: SQLite by default, PostgreSQL by URL."""

from opgauge.harness.store.store import LATEST, Run, Store

__all__ = ["LATEST", "Run", "Store"]
