"""Tracked files that a project's build rewrites, such as generated sources: their new content is no change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from opgauge.harness.project.configuration import FOLDER, Project
from opgauge.harness.project.folder import make_folder
from opgauge.harness.project.git import git

RECORD = "built.json"
"""File in the project's folder that lists them, with a digest of what the latest build made of each."""


@contextmanager
def recorded_build(project: Project) -> Iterator[None]:
    """Record the files that a build inside this context rewrites, if they were as committed or as built before."""
    own = _modified(project.tree) - _rewritten(project)
    yield
    made = {name: _digest(project.tree / name) for name in sorted(_modified(project.tree) - own)}
    if made or _read(project):
        with suppress(OSError):  # a read-only project: its files then count as modified
            folder, _ = make_folder(project.root / FOLDER)
            (folder / RECORD).write_text(json.dumps(made), encoding="utf-8")


def rewritten_files(project: Project) -> list[Path]:
    """The files that have the content that the latest build gave them, instead of the committed one."""
    return [project.tree / name for name in sorted(_rewritten(project))]


def _rewritten(project: Project) -> set[str]:
    return {name for name, digest in _read(project).items() if _digest(project.tree / name) == digest}


def _read(project: Project) -> Mapping[str, str]:
    try:
        found = json.loads((project.root / FOLDER / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _modified(tree: Path) -> set[str]:
    """Tracked files that differ from the commit, relative to the tree."""
    return set(filter(None, git(tree, "diff", "--name-only", "--no-renames", "--relative", "-z", "HEAD").split("\0")))


def _digest(file: Path) -> str:
    """A digest of a file's content; empty without the file."""
    return sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
