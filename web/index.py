"""Index of all runs in memory, read once and then extended: runs hardly change after they end."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from sqlalchemy import Engine

from opgauge.harness.store import run_queries
from opgauge.harness.store.run_queries import RunInfo


class RunIndex:
    """Every run of a database; 20,000 of them take some ten megabytes, as equal environments are shared."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._runs: dict[int, RunInfo] = {}
        self._running: set[int] = set()

    def advance(self) -> list[RunInfo]:
        """All runs, latest first, after reading those that are new or were running."""
        with self._lock:
            count, last = run_queries.mark_runs(self._engine)
            self._enter(run_queries.load_runs_after(self._engine, max(self._runs, default=0), self._running))
            if (len(self._runs), max(self._runs, default=0)) != (count, last):
                # runs were deleted, or are being added right now
                self._runs, self._running = {}, set()
                self._enter(run_queries.load_runs_after(self._engine, 0))
            return sorted(self._runs.values(), key=lambda run: (run.started, run.key), reverse=True)

    def _enter(self, runs: Iterable[RunInfo]) -> None:
        for run in runs:
            self._runs[run.key] = run
            (self._running.add if run.status == "running" else self._running.discard)(run.key)
