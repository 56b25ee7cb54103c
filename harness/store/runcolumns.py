"""Columns of a run that repeat entries of its environment, for filters and order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from opgauge.harness.result.result import Environment

PROJECT_LENGTH, BRANCH_LENGTH, VERSION_LENGTH = 64, 128, 32


def run_columns(environment: Environment) -> dict[str, Any]:
    """The columns project, branch, committed, dirty and opgauge of a run with this environment."""
    soft = environment.soft
    return {
        "project": soft.get("project", "")[:PROJECT_LENGTH],
        "branch": soft.get("branch", "")[:BRANCH_LENGTH],
        "committed": _moment(soft.get("commit_time", "")),
        "dirty": soft.get("dirty") == "yes" or environment.commit.endswith("-dirty"),
        "opgauge": soft.get("opgauge", "")[:VERSION_LENGTH],
    }


def _moment(text: str) -> datetime | None:
    """A time with a zone; None for anything else, as the environment of a submitted run is free text."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
