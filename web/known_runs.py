"""Runs by their ids: a finished one is in memory, all others are sought in the database."""

from __future__ import annotations

from opgauge.harness.store import run_queries
from opgauge.harness.store.run_queries import UUID_LENGTH, RunInfo
from opgauge.web.reader import Reader


def find_runs(reader: Reader, beginning: str) -> list[RunInfo]:
    """Runs of the reader's project whose id begins so, two at most."""
    known = reader.cache.get(
        "finished runs", lambda: {run.id: run for run in reader.runs() if run.status == "finished"}
    )
    found = known.get(beginning) if len(beginning) == UUID_LENGTH else None
    return [found] if found else run_queries.find_runs(reader.engine, beginning, project=reader.project)
