"""Folders of `ops` that a change can reach: by imports of modules, includes of CUDA sources, and ops made of others."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "opgauge.ops"
"""Name of the package whose modules count."""
LOOKUPS = {"find_op", "find_kernel"}
"""Functions that find an op by its name."""
CUDA_SUFFIXES = (".cu", ".cuh")
"""Suffixes of CUDA sources."""
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
MODULE = re.compile(rf"{re.escape(PACKAGE)}(?:\.\w+)+")
SOURCE = re.compile(r"[\w/]+\.cuh?")
"""Included files, and texts that name a module or a CUDA source."""


def reached_folders(root: Path, changed: Iterable[Path]) -> set[str] | None:
    """Folders of the ops in `root` whose code may use one of the changed files; None: every op, as far as is known.

    A module uses what it imports, also by name, with the packages above it, and the CUDA sources that it names; a
    source uses what it includes; an op's module that looks ops up uses the folders of those that it names. A shared
    file that nothing uses by these rules may be used by every op.
    """
    sources = _Sources(root)
    found: set[str] = set()
    for path in changed:
        folder = path.relative_to(root).parts[0]
        is_shared = folder.startswith("_")
        reached = sources.users_of([path] if is_shared else sources.of_folder(folder))
        ops = {name for name in map(sources.folder_of, reached) if name and not name.startswith("_")}
        # the package's own file and what it imports are used by all
        if is_shared and (not ops or root / "__init__.py" in reached):
            return None
        found |= ops | (set() if is_shared else {folder})
    return found


@dataclass(frozen=True)
class _Sources:
    """Modules and CUDA sources of an `ops` folder."""

    root: Path

    @cached_property
    def files(self) -> list[Path]:
        """All of them."""
        return [path for path in sorted(self.root.rglob("*")) if path.suffix in (".py", *CUDA_SUFFIXES)]

    def of_folder(self, name: str) -> list[Path]:
        """The files in one folder of `ops`."""
        return [path for path in self.files if self.folder_of(path) == name]

    @cached_property
    def shared(self) -> Mapping[str, list[Path]]:
        """Files of shared folders by name; an op's own files are used from its folder only."""
        found: dict[str, list[Path]] = defaultdict(list)
        for path in self.files:
            if self.folder_of(path).startswith("_"):
                found[path.name].append(path)
        return found

    @cached_property
    def users(self) -> Mapping[Path, set[Path]]:
        """Files that use each file directly."""
        found: dict[Path, set[Path]] = defaultdict(set)
        for path in self.files:
            for one in self._used(path):
                found[one].add(path)
        return found

    def folder_of(self, path: Path) -> str:
        """Name of the folder of `ops` that a file is in; empty for the package's own files."""
        parts = path.relative_to(self.root).parts
        return parts[0] if len(parts) > 1 else ""

    def users_of(self, starts: Iterable[Path]) -> set[Path]:
        """The files, and those that use them, directly or through others."""
        waiting = list(starts)
        found = set(waiting)
        while waiting:
            new = self.users.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)
        return found

    def _used(self, path: Path) -> Iterator[Path]:
        """Files that one file uses directly."""
        text = path.read_text(encoding="utf-8")
        if path.suffix in CUDA_SUFFIXES:
            names = INCLUDE.findall(text)
        else:
            names = SOURCE.findall(text)
            tree = ast.parse(text)
            for module in {*self._imported(path, tree), *MODULE.findall(text)}:
                yield from self._files_of(module)
            yield from self._looked_up(path, tree)
        for name in names:
            beside = path.parent / name
            yield from [beside] if beside.is_file() else self.shared.get(Path(name).name, ())

    def _imported(self, path: Path, tree: ast.Module) -> Iterator[str]:
        """Names of modules that a module imports; names imported from one may be modules too."""
        package = [PACKAGE, *path.parent.relative_to(self.root).parts]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parents = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join(filter(None, (*parents, node.module)))
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)

    def _files_of(self, module: str) -> Iterator[Path]:
        """The file of a module, and those of the packages above it, except the whole package."""
        place = self.root
        for part in module.removeprefix(PACKAGE).split(".")[1:] if module.startswith(f"{PACKAGE}.") else ():
            place /= part
            yield from (file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())

    def _looked_up(self, path: Path, tree: ast.Module) -> Iterator[Path]:
        """Files of the folders whose ops a module of another op looks up by name."""
        own, nodes = self.folder_of(path), list(ast.walk(tree))
        if (
            not own
            or own.startswith("_")
            or not any(isinstance(node, ast.Name) and node.id in LOOKUPS for node in nodes)
        ):
            return
        names = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        for file in self.files:
            folder = self.folder_of(file)
            if folder and folder != own and any(f"{name}_".startswith(f"{folder}_") for name in names):
                yield file
