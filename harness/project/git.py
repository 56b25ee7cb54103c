"""Git commands in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from opgauge.harness.errors import RefError
from opgauge.harness.settings import program_environment

PATIENCE_S = 10
"""Longest run time of a git command whose output can be missing."""


def git(tree: Path, *arguments: str) -> str:
    """Output of git for `tree`; empty if git is missing, fails or takes too long."""
    try:
        done = run_git(tree, *arguments, timeout_s=PATIENCE_S)
    except (RefError, OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run_git(tree: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """The finished git command in `tree`, its messages in English; raises RefError where git is missing.

    Characters that are not UTF-8 are replaced.
    """
    # a refreshed index cannot be written to a read-only .git
    command = ["git", "--no-optional-locks", "-C", str(tree), *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
            # a session of its own: Ctrl-C at the terminal interrupts this process, and must not interrupt git
            start_new_session=True,
            env=program_environment({"LC_ALL": "C"}),
        )
    except FileNotFoundError as error:
        msg = "git is needed to compare with another commit, and is not installed"
        raise RefError(msg) from error
