"""Tracked files that a build rewrites: a tree in which only they differ is the commit's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opgauge.harness.project import active
from opgauge.harness.project.configuration import read_project
from opgauge.harness.project.git import git
from opgauge.harness.run.environment import commit, revision
from opgauge.harness.run.tree import default_base

BUILD = "echo $$ >version.py; rm -f old.py; sed -i 's/  */ /g' kernel.py"
"""Writes another text each time, removes a file, and formats a source in place."""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """The active project, in a folder of a repository with two commits, which imports from another folder."""
    made = tmp_path / "native"
    for name in ("native/kernel.py", "native/version.py", "native/old.py", "common/clip.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("value = 1\n")
    (made / "opgauge.toml").write_text(f'path = "../common"\nbuild = "{BUILD}"\n')
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-qb", "main"), ("add", "."), ("commit", "-qm", "1"), ("commit", "-qm2", "--allow-empty")):
        subprocess.run(["git", "-C", str(tmp_path), *names, *command], check=True)
    active.use(read_project(made / "opgauge.toml"))
    yield made
    active.use(None)


def test_what_a_build_rewrites_leaves_a_commit_clean(tree: Path) -> None:
    """Again and again; histories would have no run of such a project. The default base is the commit before."""
    for _ in range(2):
        active.build()
        assert git(tree, "diff", "--name-only", "HEAD") == "native/old.py\nnative/version.py"
        assert not revision(tree).is_dirty
        assert commit(tree) == git(tree, "rev-parse", "HEAD")
        assert default_base(tree) == git(tree, "rev-parse", "HEAD~1")


@pytest.mark.parametrize("name", ["kernel.py", "version.py"])
def test_an_edited_file_is_a_change(tree: Path, name: str) -> None:
    """Also a source that the build formats after the edit, and a built file that is edited after the build."""
    active.build()
    (tree / name).write_text("value   = 2\n")
    assert revision(tree).is_dirty
    active.build()
    assert revision(tree).is_dirty
    assert default_base(tree) == git(tree, "rev-parse", "HEAD")
    git(tree, "checkout", "--", name)
    active.build()
    assert not revision(tree).is_dirty


def test_a_folder_to_import_from_is_measured_too(tree: Path) -> None:
    """A modified file in a folder that `path` names makes the run one of a modified tree."""
    active.build()
    (tree.parent / "common" / "clip.py").write_text("value = 2\n")
    assert revision(tree).is_dirty
