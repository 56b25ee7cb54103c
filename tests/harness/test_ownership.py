"""A repository of another user: git refuses to read it, and every command that would store its commit says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgauge.harness.project.revision import ownership_note
from tests.commandline import run_here
from tests.tinytree import ROOT

FOREIGN = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
"""Lets git take every repository for one of another user."""
REMEDY = "git config --global --add safe.directory"


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--device", "cpu"),
        ("gate", "--dry-run"),
        ("gate", "--base", "HEAD", "--dry-run"),
        ("run", "cases/dot.yaml", "--name", "vector-small[float32]", "-i", "baseline", "--device", "cpu"),
    ],
    ids=["doctor", "gate", "gate with a base", "run"],
)
def test_an_unknown_commit_is_explained(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Each command names git's remedy; in a repository of the same user none does."""
    variables = {"OPGAUGE_DB": f"{tmp_path}/x.db"}
    done = run_here(*arguments, cwd=ROOT, variables={**variables, **FOREIGN})
    assert f"{REMEDY} {ROOT}" in done.stdout + done.stderr
    assert "belongs to another user" in done.stdout + done.stderr


def test_a_folder_of_the_same_user_needs_no_remedy(tmp_path: Path) -> None:
    """Neither a readable repository nor a folder without one has a note."""
    assert ownership_note(ROOT) == ""
    assert ownership_note(tmp_path) == ""
