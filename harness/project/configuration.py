"""Project configuration: `opgauge.toml`, or `[tool.opgauge]` in pyproject.toml.

Every key is optional:

    name = "kernels"                    # of the project; default: [project] name, else the repository's
    ops = ["bench.py", "kernels.ops"]   # files and modules that register ops
    cases = ["cases"]                   # case files and folders of them, `cases` by default; `build` may make them
    policy = "cases/policy.yaml"        # of the gate; default: policy.yaml in the first folder of cases
    waivers = "cases/waivers.yaml"      # likewise
    database = ".opgauge/opgauge.db"    # path or URL
    build = "make"                      # run once in each tree before its ops are imported
    path = ["src"]                      # folders to import from, before the project's own; `build` may make them
    tree = "."                          # folder whose code is measured
    builtin = false                     # whether the ops that opgauge ships are there too

    [changed]                           # for `gate --changed`: files that count as a change of an op
    rms_norm = ["kernels/rms*"]
    "*" = ["kernels/common"]            # of every op
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from opgauge.harness.errors import ConfigurationError

FILE = "opgauge.toml"
"""Name of the configuration file."""
PYPROJECT = "pyproject.toml"
"""File whose table `[tool.opgauge]` is a configuration too."""
CASES = "cases"
"""Folder of a project's cases, if its ops are named, and no cases."""
FOLDER = ".opgauge"
"""Folder for opgauge's own files in a project; it has a .gitignore for itself."""


@dataclass(frozen=True, slots=True)
class Project:
    """A configured project; paths are absolute, except those of `changed`.

    root: folder of the configuration. file: the configuration. tree: folder whose code is measured. Other fields
    are described above.
    """

    root: Path
    file: Path
    tree: Path
    name: str = ""
    ops: tuple[str, ...] = ()
    cases: tuple[Path, ...] = ()
    policy: Path | None = None
    waivers: Path | None = None
    database: str = ""
    build: str = ""
    path: tuple[Path, ...] = ()
    builtin: bool = False
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_library(self) -> bool:
        """Whether the tree is opgauge's own, whose `ops` replaces the installed one."""
        return is_library(self.tree)


def is_library(tree: Path) -> bool:
    """Whether a folder contains opgauge's own operator library."""
    return (tree / "ops" / "_core" / "registry.py").is_file()


class _UnfitError(Exception):
    """A value that a key does not accept."""


def find_project(start: Path) -> Project | None:
    """The project of the nearest configuration in `start` or above it; None without one."""
    for folder in (start.resolve(), *start.resolve().parents):
        for name in (FILE, PYPROJECT):
            file = folder / name
            if file.is_file() and (name == FILE or _table(file) is not None):
                return read_project(file)
    return None


def projects_below(folder: Path) -> list[Path]:
    """Configurations in a repository's folders below `folder`, whether committed or not; none outside a repository."""
    from opgauge.harness.project.git import git

    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", f"*{FILE}", f"*{PYPROJECT}")
    files = [folder / name for name in listed.split("\0") if Path(name).name in {FILE, PYPROJECT}]
    return [file for file in files if file.is_file() and (file.name == FILE or _is_configured(file))]


def _is_configured(file: Path) -> bool:
    """Whether a pyproject.toml that is somebody's own business configures a project; not if it cannot be read."""
    try:
        return _table(file) is not None
    except ConfigurationError:
        return False


def read_project(file: Path) -> Project:
    """The project that a file configures; raises ConfigurationError with the fault, and the nearest key."""
    table = _table(file)
    if table is None:
        msg = f"{file} has no [tool.opgauge]"
        raise ConfigurationError(msg)
    root = file.resolve().parent
    read: dict[str, Any] = {}
    for key, value in table.items():
        if key not in READERS:
            near = get_close_matches(key, READERS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(READERS)}"
            msg = f"{file}: unknown key {key!r}{hint}"
            raise ConfigurationError(msg)
        try:
            read[key] = READERS[key](root, value)
        except _UnfitError as error:
            msg = f"{file}: {key} {error}"
            raise ConfigurationError(msg) from error
    if "ops" in read and "cases" not in read and (root / CASES).exists():
        read["cases"] = (root / CASES,)
    project = Project(root=root, file=file.resolve(), **{"tree": root, **read})
    _check(project)
    return project


def _check(project: Project) -> None:
    """Raise ConfigurationError for paths that are not there; a build may make those of `path`, and cases."""
    missing = [path for path in _named_paths(project) if not path.exists()]
    if missing:
        msg = f"{project.file}: there is no {missing[0]}"
        raise ConfigurationError(msg)


def _named_paths(project: Project) -> Iterator[Path]:
    yield project.tree
    if not project.build:
        yield from (*project.cases, *project.path)
    yield from (path for path in (project.policy, project.waivers) if path is not None)
    yield from (project.root / name for name in project.ops if is_file_name(name))


def is_file_name(entry: str) -> bool:
    """Whether an entry of `ops` names a file, rather than a module."""
    return entry.endswith(".py")


def _table(file: Path) -> Mapping[str, Any] | None:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{file} cannot be read: {error}"
        raise ConfigurationError(msg) from error
    except tomllib.TOMLDecodeError as error:
        msg = f"{file}: {error}"
        raise ConfigurationError(msg) from error
    except RecursionError as error:
        msg = f"{file}: values are nested too deeply"
        raise ConfigurationError(msg) from error
    if file.name == PYPROJECT:
        tools = found.get("tool")
        table = tools.get("opgauge") if isinstance(tools, Mapping) else None
        return table if isinstance(table, Mapping) else None
    return found


def _text(_: Path, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        msg = f"should be text, not {value!r}"
        raise _UnfitError(msg)
    return value


def _texts(root: Path, value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed:
        msg = f"should be text or a list of texts, not {value!r}"
        raise _UnfitError(msg)
    return tuple(_text(root, one) for one in listed)


def _path(root: Path, value: Any) -> Path:
    text = _text(root, value)
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~ of nobody here
        msg = f"names a home folder that is not known: {text!r}"
        raise _UnfitError(msg) from error
    return (root / path).resolve()


def _paths(root: Path, value: Any) -> tuple[Path, ...]:
    return tuple(_path(root, one) for one in _texts(root, value))


def _switch(_: Path, value: Any) -> bool:
    if not isinstance(value, bool):
        msg = f"should be true or false, not {value!r}"
        raise _UnfitError(msg)
    return value


def _database(root: Path, value: Any) -> str:
    text = _text(root, value)
    return text if "://" in text else f"sqlite:///{(root / text).resolve()}"


def _changed(root: Path, value: Any) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        msg = f"should be a table of paths by op, not {value!r}"
        raise _UnfitError(msg)
    return MappingProxyType({op: _texts(root, paths) for op, paths in value.items()})


READERS: Mapping[str, Callable[[Path, Any], Any]] = MappingProxyType(
    {
        "name": _text,
        "ops": _texts,
        "cases": _paths,
        "policy": _path,
        "waivers": _path,
        "database": _database,
        "build": _text,
        "path": _paths,
        "tree": _path,
        "builtin": _switch,
        "changed": _changed,
    }
)
"""Reader of each key's value; raises _UnfitError with the expected value."""


def entries(project: Project) -> dict[str, Any]:
    """The configuration as `opgauge config` shows it."""
    return {item.name: getattr(project, item.name) for item in fields(project)}
