"""Changes of files, and the ops that they affect by the paths that the project declares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import NamedTuple

from opgauge.harness.project.configuration import Project

EVERY = "*"
"""Op of the declared paths that affect every op."""
ABOVE = "../"
"""Start of the names of files that are in the project's repository, and not in its tree."""
DOCUMENTS = (".md", ".rst", ".txt", ".png", ".svg", ".ipynb")
"""Suffixes of files that affect no kernel, if the project declares no paths."""


class Touched(NamedTuple):
    """Ops that a change can reach.

    ops: their names, or their folders in opgauge's own tree; None for every op. shared: the changed files because of
    which it is every op, as far as they are known.
    """

    ops: set[str] | None
    shared: tuple[str, ...] = ()


def touched_ops(project: Project, files: Iterable[str], sources: Mapping[str, Collection[str]]) -> Touched:
    """Ops that changed files affect, with the files that count for every op.

    files: relative to the project's tree, those elsewhere in its repository by `../`. sources: by op, the files that
    register its implementations and its case files; they always count. Without declared paths every file but documents
    counts for every op.
    """
    changed = list(files)
    declared = project.changed
    own = {op for op, paths in sources.items() if not set(paths).isdisjoint(changed)}
    if declared:
        shared = [name for name in changed if any(matches(name, pattern) for pattern in declared.get(EVERY, ()))]
    else:
        known = {path for paths in sources.values() for path in paths}
        shared = [name for name in changed if name not in known and PurePosixPath(name).suffix not in DOCUMENTS]
    if shared:
        return Touched(None, tuple(shared))
    patterns = {op: paths for op, paths in declared.items() if op != EVERY}
    return Touched(
        own
        | {op for op, paths in patterns.items() if any(matches(name, pattern) for name in changed for pattern in paths)}
    )


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a file or a folder that contains it; `*` crosses folders, but not into those above."""
    plain = pattern.removeprefix("./").rstrip("/")
    if name.startswith(ABOVE) and not plain.startswith(ABOVE):
        return False
    return fnmatchcase(name, plain) or fnmatchcase(name, f"{plain}/*")
