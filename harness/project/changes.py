"""Changes of files, and the ops that they affect by the paths that the project declares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from opgauge.harness.project.configuration import Project

EVERY = "*"
"""Op of the declared paths that affect every op."""
DOCUMENTS = (".md", ".rst", ".txt", ".png", ".svg", ".ipynb")
"""Suffixes of files that affect no kernel, if the project declares no paths."""


def touched_ops(project: Project, files: Iterable[str], sources: Mapping[str, Collection[str]]) -> set[str] | None:
    """Ops that changed files affect; None for every op.

    sources: by op, the files that register its implementations and its case files; they always count. Without
    declared paths every file but documents counts for every op.
    """
    changed = list(files)
    declared = project.changed
    own = {op for op, paths in sources.items() if not set(paths).isdisjoint(changed)}
    if not declared:
        known = {path for paths in sources.values() for path in paths}
        others = [name for name in changed if name not in known and PurePosixPath(name).suffix not in DOCUMENTS]
        return None if others else own
    if any(matches(name, pattern) for name in changed for pattern in declared.get(EVERY, ())):
        return None
    patterns = {op: paths for op, paths in declared.items() if op != EVERY}
    return own | {
        op for op, paths in patterns.items() if any(matches(name, pattern) for name in changed for pattern in paths)
    }


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a file or a folder that contains it; `*` crosses folders."""
    plain = pattern.removeprefix("./").rstrip("/")
    return fnmatchcase(name, plain) or fnmatchcase(name, f"{plain}/*")
