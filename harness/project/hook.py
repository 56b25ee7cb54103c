"""The files that hook a project to opgauge, as far as git does not track them: every revision uses the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opgauge.harness.project.configuration import Project, is_file_name
from opgauge.harness.project.git import git

SOURCES = (".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh")
"""Endings of a hook's own files, which a build may compile; never what a build has made."""


def hook_sources(project: Project) -> list[Path]:
    """The files of `ops`, and sources of the same name beside them."""
    files = [(project.root / entry).resolve() for entry in project.ops if is_file_name(entry)]
    return [source for file in files for source in map(file.with_suffix, SOURCES) if source.is_file()]


def hook_paths(project: Project) -> list[Path]:
    """The configuration, the files and folders of cases and rules that it names, and the sources of its ops."""
    rules = [path for path in (project.policy, project.waivers) if path is not None]
    return [path.resolve() for path in (project.file, *project.cases, *rules)] + hook_sources(project)


def untracked_hook(project: Project, top: Path) -> list[Path]:
    """Files and folders of the hook inside the repository at `top` of which git tracks nothing."""
    inside = {path for path in hook_paths(project) if path.is_relative_to(top)}
    return sorted(path for path in inside if not git(top, "ls-files", "--", str(path)))


def untracked_files(project: Project, top: Path) -> Iterator[Path]:
    """The same, and untracked files in folders that git tracks in part."""
    yield from untracked_hook(project, top)
    for path in hook_paths(project):
        if path.is_relative_to(top) and path.is_dir() and git(top, "ls-files", "--", str(path)):
            listed = git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", str(path))
            yield from (top / name for name in filter(None, listed.split("\0")))
