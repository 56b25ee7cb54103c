"""Run columns that repeat entries of the environment, for filters and order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from opgauge.harness.result.result import Environment

PROJECT_LENGTH, BRANCH_LENGTH, VERSION_LENGTH = 64, 128, 32
"""Lengths of the columns project, branch and opgauge."""


def run_columns(environment: Environment) -> dict[str, Any]:
    """The columns project, branch, committed, dirty and opgauge of a run with this environment."""
    return {
        "project": environment.project[:PROJECT_LENGTH],
        "branch": environment.branch[:BRANCH_LENGTH],
        "committed": _moment(environment.commit_time),
        "dirty": environment.is_dirty,
        "opgauge": environment.opgauge[:VERSION_LENGTH],
    }


def _moment(text: str) -> datetime | None:
    """A time with a zone; None for anything else, since the environment of a submitted run is free text."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
