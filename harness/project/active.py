"""The active project of this process, chosen once by the command line, a worker's options or the library."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import opgauge
from opgauge.harness.project.configuration import Project, find_project, read_project
from opgauge.harness.project.loading import build as build_tree
from opgauge.harness.project.loading import lend_hooks, load_ops, place, project_at


class _Active:
    """State of the choice.

    project: None if nothing is configured. tree: the checkout whose ops are imported; None before. is_builtin: whether
    the shipped ops were requested.
    """

    project: Project | None = None
    tree: Path | None = None
    is_builtin: bool = False


class ProjectChoice(NamedTuple):
    """Options that select the project.

    file: its configuration, instead of the nearest. builtin: measure the ops that opgauge ships.
    """

    file: Path | None = None
    builtin: bool = False


def choose(choice: ProjectChoice = ProjectChoice(), start: Path | None = None) -> Project | None:  # noqa: B008
    """Choose the project for this process, by default that of `start` or the current folder, and return it.

    Call it before `opgauge.ops` is imported: the shipped ops are not registered for a project that does not use
    them. Raises ConfigurationError.
    """
    _Active.is_builtin = choice.builtin
    if choice.builtin:
        project = None
    elif choice.file is not None:
        project = read_project(choice.file)
    else:
        project = find_project(start or Path.cwd())
    return use(project)


def use(project: Project | None) -> Project | None:
    """Make `project` this process's own, and return it."""
    _Active.project, _Active.tree = project, None
    opgauge.shipped_ops = project is None or project.builtin or project.is_library
    return project


def active() -> Project | None:
    """The project of this process; None if nothing is configured."""
    return _Active.project


def measured() -> Project | None:
    """The active project if its own code is measured: None for the shipped ops and for opgauge's own tree."""
    project = _Active.project
    return None if project is None or project.is_library else project


def load(tree: Path | None = None) -> None:
    """Import the ops of the active project, once; from another checkout of it if `tree` is given."""
    project = measured()
    if project is None or _Active.tree is not None:
        return
    load_ops(project, tree)
    _Active.tree = project.tree if tree is None else tree.resolve()


def code_place(error: BaseException) -> str:
    """The innermost line of the imported project that an error passed through, as a suffix of its message."""
    return "" if _Active.tree is None else place(error, _Active.tree)


def is_unconfigured() -> bool:
    """Whether shipped ops are measured because no project is configured here, and not because they were requested."""
    return _Active.project is None and not _Active.is_builtin


def build_command(tree: Path | None = None) -> str:
    """The command that builds the active project, or another checkout of it; empty if it has none."""
    project = measured()
    return "" if project is None else project_at(project, tree or project.tree).build


def build(tree: Path | None = None) -> None:
    """Run the active project's build command in its tree, or in another checkout; raises TreeError if it fails."""
    from opgauge.harness.project.rewritten import recorded_build

    project = measured()
    if project is None or not build_command(tree):
        return
    if tree is None or tree.resolve() == project.tree:
        with recorded_build(project):
            build_tree(project, project.tree)
    else:
        build_tree(project, tree)


def lend(tree: Path) -> None:
    """Copy the active project's untracked hook into a temporary checkout: see `lend_hooks`."""
    project = measured()
    if project is not None:
        lend_hooks(project, tree.resolve())
