"""Loading a project's ops: those that its configuration names, and the shipped ones if it requests them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from opgauge.harness.errors import RefError, TreeError
from opgauge.harness.project.configuration import Project, is_file_name, read_project
from opgauge.harness.project.git import git, run_git
from opgauge.harness.project.hook import hook_sources
from opgauge.harness.project.installed import refuse_strangers
from opgauge.harness.settings import program_environment

BUILD_LOG = 3000
"""Characters of a failed build's output in a message."""


def project_at(project: Project, tree: Path) -> Project:
    """The configuration for another checkout of the project's tree: its own, or the given one.

    A configuration that the project's repository does not track is used from where it is: it is the same for every
    revision.
    """
    if tree.resolve() == project.tree:
        return project
    file = _moved(project, project.file, tree)
    if file is not None and file.is_file():
        return read_project(file)
    return project


def lend_hooks(project: Project, tree: Path) -> None:
    """Copy the files of `ops` that git does not track into another checkout, and sources of the same name.

    Kernels that such a hook reads from beside it, and what it loads from a build, are then those of that checkout.
    """
    for source in hook_sources(project):
        moved = _moved(project, source, tree)
        if moved is None or moved.exists() or _is_tracked(project.tree, source):
            continue
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, moved)


def load_ops(project: Project, tree: Path | None = None) -> list[str]:
    """Import the files that register the project's ops, and return the modules' files.

    tree: another checkout of the project to import from, if given. Raises TreeError with the cause if one cannot be
    imported, or is imported from elsewhere than the tree.
    """
    from opgauge.ops import discover

    where = project.tree if tree is None else tree.resolve()
    configured = project if tree is None else project_at(project, where)
    _extend_path(configured, project, where)
    if configured.builtin:
        discover()
    loaded = []
    for entry in configured.ops:
        try:
            with redirect_stdout(sys.stderr):  # standard output may be JSON
                module = _import(configured, project, where, entry)
        except (Exception, SystemExit) as error:  # a script that ends must not end this process with its code
            why = f"{type(error).__name__}: {error}{place(error, where)}{_absent_submodules(where)}"
            msg = f"{entry} cannot be imported: {why}"
            raise TreeError(msg) from error
        if module is not None:
            loaded.append(str(module.__file__))
    refuse_strangers(where, project.tree)
    return loaded


def _absent_submodules(tree: Path) -> str:
    """Submodules that are not initialized, which may hold what an import misses, as a suffix of a message."""
    try:
        listed = run_git(tree, "submodule", "status").stdout.splitlines()
    except RefError:
        return ""
    absent = [line.split()[1] for line in listed if line.startswith("-")]
    return f"; not initialized: {', '.join(absent)} (git submodule update --init)" if absent else ""


def place(error: BaseException, tree: Path) -> str:
    """The innermost line of the project that an error passed through, as a suffix of its message."""
    files = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [
        (file.relative_to(tree), line)
        for file, line in files
        if file.is_relative_to(tree) and "site-packages" not in file.relative_to(tree).parts
    ]
    return f" ({inside[-1][0]}:{inside[-1][1]})" if inside else ""


def build(project: Project, tree: Path) -> None:
    """Run the project's build command in `tree`; raises TreeError with the end of its output if it fails."""
    command = project_at(project, tree).build
    if not command:
        return
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tree,
        env=_build_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        log = done.stdout[-BUILD_LOG:].rstrip()
        msg = f"`{command}` failed in {tree} with exit code {done.returncode}" + (f":\n{log}" if log else "")
        raise TreeError(msg)


def _build_environment() -> dict[str, str]:
    """Variables of a build command: `python` is the one that runs here, also in an environment not activated."""
    if sys.prefix == sys.base_prefix:
        return program_environment({})
    inherited = program_environment({})
    return {**inherited, "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), inherited.get("PATH", "")])}


def _extend_path(configured: Project, original: Project, tree: Path) -> None:
    """Import from folders of `path` in the tree first, then from the tree, then from folders outside it.

    A folder of `path` precedes the sources of the same package: the build may install into it what the sources lack.
    """
    named = [_moved(configured, path, tree) or path for path in configured.path]
    inner = [folder for folder in named if folder.is_relative_to(tree)]
    outer = [folder for folder in named if folder not in inner]
    roots = [folder for folder in (configured.root, original.root) if not folder.is_relative_to(original.tree)]
    for folder in reversed([*inner, tree, tree / "src", *outer, *roots]):
        text = str(folder)
        if folder.is_dir() and text not in sys.path:
            sys.path.insert(0, text)


def _import(configured: Project, original: Project, tree: Path, entry: str) -> ModuleType | None:
    if not is_file_name(entry):
        return importlib.import_module(entry)
    file = (configured.root / entry).resolve()
    moved = _moved(original, file, tree)
    if moved is not None and moved.is_file():
        return _import_file(moved, tree)
    if moved is not None and tree != original.tree and _is_tracked(original.tree, file):
        return None  # a file that does not exist in this revision yet
    return _import_file(file, tree)


def _import_file(file: Path, tree: Path) -> ModuleType:
    """The module of a file, under its dotted name below the folder from which it is imported."""
    name = _module_name(file, tree)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if known is not None or name.partition(".")[0] in sys.stdlib_module_names:
        name = f"opgauge_project_{name.replace('.', '_')}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        msg = f"{file} is no Python file"
        raise ImportError(msg)
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(file: Path, tree: Path) -> str:
    for folder in (tree / "src", tree):
        if file.is_relative_to(folder):
            parts = file.relative_to(folder).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                return ".".join(parts)
    return file.stem if file.stem.isidentifier() else "opgauge_project"


def _moved(project: Project, path: Path, tree: Path) -> Path | None:
    """The same path in another checkout of the project's tree; None for a path outside the tree."""
    if not path.is_relative_to(project.tree):
        return path if path.is_relative_to(tree) else None
    return tree / path.relative_to(project.tree)


def _is_tracked(tree: Path, file: Path) -> bool:
    return bool(git(tree, "ls-files", "--", str(file)))
