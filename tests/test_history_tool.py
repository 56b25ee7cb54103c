"""The tool that measures a history of commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.history import Planted, commits


def _git(tree: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    command = ["git", "-C", str(tree), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_commits_that_leave_ops_alone_are_skipped(tmp_path: Path) -> None:
    """The latest commits that changed `ops` are found, oldest first, and no others."""
    _git(tmp_path, "init", "-q")
    (tmp_path / "ops").mkdir()
    made = []
    for name in ("ops/a", "ops/b", "docs", "ops/c"):
        (tmp_path / name).write_text(name)
        _git(tmp_path, "add", "-A")
        _git(tmp_path, "commit", "-q", "-m", name)
        made.append(_git(tmp_path, "rev-parse", "HEAD"))
    assert commits(tmp_path, 2) == [made[1], made[3]]


def test_a_planted_slowdown_says_what_it_is() -> None:
    """A slowdown covers its commits only, and names op and share."""
    planted = Planted.parse("sign:0.3:2:2")
    assert [planted.covers(place) for place in range(5)] == [False, False, True, True, False]
    assert str(planted) == "sign optimized, 30 % slower"
