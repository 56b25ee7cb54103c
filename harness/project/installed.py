"""Find modules that came from an installed copy of the project, or from another checkout, instead of its tree."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from filecmp import cmp
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from opgauge.harness.counting import counted
from opgauge.harness.errors import TreeError
from opgauge.harness.project.configuration import Project
from opgauge.harness.project.git import git
from opgauge.harness.project.revision import repository_top

if TYPE_CHECKING:
    from importlib.metadata import Distribution

REMEDY = "uninstall it and name the package's folder in `path`, or let `build` install into a folder that `path` names"
"""End of the message about a module from elsewhere."""
IN_BOTH = "an installed copy goes first, in both trees"
"""Why a gate ends where a module is from elsewhere."""
FOLDER_URL = "direct_url.json"
"""File in which pip records the folder or archive that a distribution was installed from."""


def refuse_strangers(tree: Path, other: Path) -> None:
    """Raise TreeError if a module of this tree was imported from the project's other checkout or an installed copy."""
    if tree == other:
        return
    imported = list(_imported_files())
    for name, file in imported:
        if not file.is_relative_to(other) or file.is_relative_to(tree):
            continue
        inside = tree / file.relative_to(other)
        is_built = file.name.endswith(tuple(EXTENSION_SUFFIXES))
        if (inside.is_file() or is_built) and ".venv" not in inside.parts and "site-packages" not in inside.parts:
            msg = f"module {name} was imported from {file} instead of {inside}: {IN_BOTH}; {REMEDY}"
            raise TreeError(msg)
    installed = _installed_files(other)
    for name, file in imported:
        if file in installed and not file.is_relative_to(tree):
            msg = f"module {name} was imported from {file} instead of {tree}: {IN_BOTH}; {REMEDY}"
            raise TreeError(msg)


def stale_copies(project: Project) -> dict[str, Path]:
    """Imported modules of the project that differ from its tree, with their files: an older installed copy.

    A compiled module has no equal in the tree; it may be out of date unless the project is built, or `path` names its
    folder.
    """
    installed = _installed_files(project.tree)
    if not installed:
        return {}
    top = repository_top(project.tree)
    listed = git(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    found = {}
    for name, file in _imported_files():
        inner = installed.get(file)
        if inner is None or any(file.is_relative_to(folder) for folder in project.path):
            continue
        if file.suffix == ".py":
            sources = [top / one for one in listed if one == inner or one.endswith(f"/{inner}")]
            is_same = any(one.is_file() and cmp(one, file, shallow=False) for one in sources)
        else:
            is_same = bool(project.build)
        if not is_same:
            found[name] = file
    return found


def copy_note(project: Project | None) -> str:
    """A note about modules from an installed copy that differs from the project's tree; empty without any."""
    copies = stale_copies(project) if project is not None else {}
    if not copies:
        return ""
    name, file = next(iter(copies.items()))
    more = f" (and {counted(len(copies) - 1, 'more module')})" if len(copies) > 1 else ""
    return f"module {name}{more} was imported from {file}, which differs from this tree: {REMEDY}"


def _imported_files() -> Iterator[tuple[str, Path]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield name, Path(file)


@cache
def _installed_files(tree: Path) -> dict[Path, str]:
    """Files of the installed distributions that are copies of this repository's, except loaders of editable ones.

    Each with its path inside the distribution.
    """
    from importlib.metadata import distributions

    top = repository_top(tree)
    names = _declared_names(top)
    own = [one for one in distributions() if _normal(_name(one)) in names or _is_from(one, top)]
    return {
        Path(str(one.locate_file(file))): file.as_posix()
        for one in own
        for file in one.files or ()
        if "editable" not in file.parts[0]
    }


def _is_from(distribution: Distribution, top: Path) -> bool:
    """Whether pip installed a distribution from a folder or archive inside `top`."""
    try:
        url = urlsplit(json.loads(distribution.read_text(FOLDER_URL) or "{}").get("url", ""))
    except (ValueError, AttributeError):
        return False
    return url.scheme == "file" and Path(unquote(url.path)).resolve().is_relative_to(top.resolve())


def _declared_names(top: Path) -> set[str]:
    """Normalized names of the projects that the repository's pyproject.toml files declare."""
    found = set()
    for line in git(top, "ls-files", "-z", "--", "pyproject.toml", "**/pyproject.toml").split("\0"):
        try:
            name = tomllib.loads((top / line).read_text(encoding="utf-8")).get("project", {}).get("name")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(name, str):
            found.add(_normal(name))
    return found


def _name(distribution: Distribution) -> str:
    """The name of a distribution, from its folder where it has one: reading its metadata takes longer."""
    folder = getattr(distribution, "_path", None)
    if folder is not None and str(folder).endswith(".dist-info"):
        return str(Path(str(folder)).name).removesuffix(".dist-info").rpartition("-")[0]
    return str(distribution.metadata["Name"] or "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
