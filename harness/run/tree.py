"""Trees that contain `ops`: the current one, and temporary checkouts of its commits.

The temporary worktree is removed on every exit, Ctrl-C and SIGTERM included; one left by SIGKILL is removed by the next
run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opgauge.harness.errors import RefError
from opgauge.harness.project.active import measured
from opgauge.harness.project.git import git, run_git
from opgauge.harness.project.revision import exclusions, ownership_note
from opgauge.harness.project.rewritten import rewritten_files
from opgauge.harness.run.reach import reached_folders
from opgauge.harness.run.signals import interruptible, uninterrupted
from opgauge.harness.run.submodules import check_out_submodules, is_readable, recorded_submodules

BYTECODE = "__pycache__/"
"""Pattern of folders that running Python makes: none is a change."""
PREFIX = "opgauge-base-"
"""Start of the names of temporary folders."""
TUNING = "tuning"
"""Folder of `ops` that affects every op, as those with a leading underscore do."""
CASES = "cases"
"""Folder of case files."""
DEFAULT_BRANCHES = ("remotes/origin/HEAD", "remotes/origin/main", "remotes/origin/master", "heads/main", "heads/master")
"""Default branches by git's full names, which no tag has."""
SHALLOW = "a shallow clone has only its last commits: git fetch --unshallow"
"""Reason for a missing commit, with its remedy."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder that contains `ops`, or a project's.

    commit: full, with `-dirty` if files differ from it. label: the name in reports. preload: modules that its worker
    processes import after its ops. environment: more variables of these processes.
    """

    path: Path
    commit: str
    label: str
    preload: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        short = self.commit[:12] + ("-dirty" if self.commit.endswith("-dirty") else "")
        return f"{self.label} ({short})" if short and short != self.label else self.label


def find_tree(start: Path) -> Path:
    """The tree to measure: the project's, or the nearest folder, `start` or above it, with opgauge's `ops`.

    Raises RefError without one.
    """
    project = measured()
    if project is not None:
        inside = any(start.resolve().is_relative_to(folder) for folder in (project.root, project.tree))
        return project.tree if inside or start.resolve() == Path.cwd() else start.resolve()
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / "ops" / "__init__.py").is_file():
            return folder
    msg = f"neither {start} nor a folder above it has opgauge.toml, [tool.opgauge] or ops/; `opgauge init` writes one"
    raise RefError(msg)


def resolve(tree: Path, ref: str) -> str:
    """The commit that `ref` names in the repository of `tree`; of a branch and a tag with that name, the branch.

    Raises RefError.
    """
    found = _commit(tree, f"refs/heads/{ref}") or _commit(tree, ref)
    if not found:
        why = _why_missing(tree, ref)
        msg = f"no commit {ref!r} in {tree}{f' ({why})' if why else ''}"
        raise RefError(msg)
    return found


def _commit(tree: Path, ref: str) -> str:
    """The commit that git finds for `ref`; empty if it finds none."""
    done = run_git(tree, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return "" if done.returncode else done.stdout.strip()


def _why_missing(tree: Path, ref: str) -> str:
    shallow = run_git(tree, "rev-parse", "--is-shallow-repository")
    if shallow.returncode:
        return ownership_note(tree) or shallow.stderr.strip()
    if _commit(tree, f"refs/remotes/origin/{ref}"):
        return f"did you mean 'origin/{ref}'?"
    if shallow.stdout.strip() == "true":
        return SHALLOW
    if not _commit(tree, "HEAD"):
        return "it has no commit yet: commit first"
    return "it has one commit: commit a change, or name --base" if ref == "HEAD~1" else ""


@contextmanager
def checkout(tree: Path, commit: str) -> Iterator[Path]:
    """The folder `tree` at `commit`, under the name that it had then, in a temporary worktree."""
    _sweep(tree)
    with interruptible():
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        try:
            # hooks are meant for people who check out
            done = run_git(
                tree,
                "-c",
                "core.hooksPath=/dev/null",
                "worktree",
                "add",
                "--quiet",
                "--lock",
                "--detach",
                str(folder / "tree"),
                commit,
            )
            if not done.returncode:
                _own_git_folder(folder / "tree")
            else:
                done = _clone(tree, commit, folder / "tree")
            if done.returncode:
                msg = f"{commit[:12]} cannot be checked out: {done.stderr.strip()}"
                raise RefError(msg)
            top, prefix = (
                run_git(tree, "rev-parse", name).stdout.strip() for name in ("--show-toplevel", "--show-prefix")
            )
            check_out_submodules(Path(top), folder / "tree")
            is_there = (folder / "tree" / prefix).is_dir()
            yield folder / "tree" / (prefix if is_there else _earlier_name(Path(top), commit, prefix))
        finally:
            with uninterrupted():
                _remove(tree, folder)


def _earlier_name(top: Path, commit: str, prefix: str) -> str:
    """Name at `commit` of a folder of a repository, from which most of its files were moved; the same without any."""
    listed = run_git(top, "diff", "--find-renames", "--diff-filter=R", "--name-status", "-z", commit).stdout
    fields = listed.split("\0")
    moves = zip(fields[1::3], fields[2::3], strict=False)
    inside = ((old, new.removeprefix(prefix)) for old, new in moves if new.startswith(prefix))
    found = Counter(old.removesuffix(rest) for old, rest in inside if old.endswith(rest))
    return next((name for name, _ in found.most_common(1)), prefix)


def own_extensions(beside: Path) -> dict[str, str]:
    """Environment of processes on a checkout: extensions that torch compiles at import go to a folder of its own.

    torch names their folder by the extension alone, so that two trees would compile and load those of each other.
    """
    (folder,) = [one for one in beside.parents if one.name.startswith(PREFIX)][-1:]
    return {"TORCH_EXTENSIONS_DIR": str(folder / "extensions")}


def _own_git_folder(worktree: Path) -> None:
    """Make `.git` of a worktree a folder, as in a clone: builds look for one to tell a checkout from an archive.

    The worktree is locked: another gate's `git worktree prune` would take it for an abandoned one meanwhile.
    """
    file = worktree / ".git"
    folder = Path(file.read_text(encoding="utf-8").removeprefix("gitdir:").strip())
    common = (folder / (folder / "commondir").read_text(encoding="utf-8").strip()).resolve()
    file.unlink()
    shutil.move(folder, file)
    (file / "commondir").write_text(f"{common}\n", encoding="utf-8")
    for name in ("gitdir", "locked"):
        (file / name).unlink()


def _clone(tree: Path, commit: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check out `commit` in a clone that shares the repository's objects, if its .git is read-only."""
    top = run_git(tree, "rev-parse", "--show-toplevel").stdout.strip()
    done = run_git(Path(tempfile.gettempdir()), "clone", "--quiet", "--shared", "--no-checkout", top, str(folder))
    if done.returncode:
        return done
    return run_git(folder, "-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "--detach", commit)


def changed_folders(tree: Path, changed: Iterable[str]) -> set[str] | None:
    """Folders of `ops` that changed files of `tree` can reach; None if they can reach all.

    Files of `ops` count for the ops that use them, a case file for the folder of its name.
    """
    found: set[str] = set()
    sources: list[Path] = []
    for name in changed:
        top, *rest = Path(name).parts
        if top == "harness" or (top == "ops" and (len(rest) == 1 or rest[0] == TUNING)):
            return None
        if top == "ops":
            sources.append(tree / name)
        elif top == CASES and rest:
            found.add(Path(rest[-1]).stem)
    reached = reached_folders(tree / "ops", sources) if sources else set()
    return None if reached is None else found | reached


def changed_files(tree: Path, commit: str) -> list[str]:
    """Files of `tree` that differ from `commit`, relative to `tree`; both names of a renamed file.

    Files of a submodule are listed in place of its folder. Python's bytecode is not listed.
    """
    listed = run_git(tree, "diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--", ".").stdout
    found = set(filter(None, listed.split("\0"))) | _untracked(tree)
    for _, name in recorded_submodules(tree):
        before = run_git(tree, "rev-parse", "--verify", "--quiet", f"{commit}:./{name}").stdout.strip()
        if name in found and before and is_readable(tree / name, before):
            found.remove(name)
            found |= {f"{name}/{file}" for file in changed_files(tree / name, before)}
    return sorted(found)


def untracked_files(tree: Path) -> set[str]:
    """Files that git neither tracks nor ignores, those of initialized submodules too, relative to `tree`."""
    inner = [name for _, name in recorded_submodules(tree) if (tree / name / ".git").exists()]
    return _untracked(tree) | {f"{name}/{file}" for name in inner for file in untracked_files(tree / name)}


def _untracked(tree: Path) -> set[str]:
    listed = run_git(tree, "ls-files", "--others", "--exclude-standard", f"--exclude={BYTECODE}", "-z").stdout
    return set(filter(None, listed.split("\0")))


def default_base(tree: Path) -> str:
    """The commit to compare with by default: where this branch left the default branch.

    On the default branch it is the previous commit, or the commit itself if files have changed since. A branch of
    the name that git's configuration gives new repositories comes last. Raises RefError.
    """
    own = git(tree, "config", "init.defaultBranch")
    names = (*DEFAULT_BRANCHES, *([f"remotes/origin/{own}", f"heads/{own}"] if own else []))
    named = [f"refs/{name}" for name in names if _commit(tree, f"refs/{name}")]
    for name in named:
        found = run_git(tree, "merge-base", "HEAD", name)
        if found.returncode == 0:
            base, head = found.stdout.strip(), run_git(tree, "rev-parse", "HEAD").stdout.strip()
            project = measured()
            built = exclusions(tree, rewritten_files(project)) if project is not None else []
            is_changed = bool(run_git(tree, "status", "--porcelain", "--untracked-files=no", "--", ":/", *built).stdout)
            return base if base != head or is_changed else resolve(tree, "HEAD~1")
    note = ownership_note(tree)
    if note:
        raise RefError(note)
    head = resolve(tree, "HEAD")
    if not named:
        msg = f"{tree} has no default branch (origin/HEAD, main, master or init.defaultBranch): name --base"
    else:
        shallow = run_git(tree, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
        why = SHALLOW if shallow else "name --base"
        msg = f"{head[:12]} in {tree} has no commit in common with {named[0].removeprefix('refs/')}: {why}"
    raise RefError(msg)


def reachable(tree: Path, branch: str, limit: int = 5000) -> list[str]:
    """The latest commits of a branch, newest first; empty if git knows no such branch."""
    done = run_git(tree, "rev-list", f"--max-count={limit}", "--end-of-options", branch)
    return [] if done.returncode else done.stdout.split()


def _remove(tree: Path, folder: Path) -> None:
    run_git(tree, "worktree", "remove", "--force", "--force", str(folder / "tree"))
    run_git(tree, "worktree", "unlock", str(folder / "tree"))
    shutil.rmtree(folder, ignore_errors=True)
    run_git(tree, "worktree", "prune")


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder; folders with this prefix that a SIGKILL left are removed first."""
    for folder in _abandoned(prefix):
        shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _sweep(tree: Path) -> None:
    """Remove worktrees of processes that have ended."""
    for folder in _abandoned(PREFIX):
        _remove(tree, folder)


def _abandoned(prefix: str) -> Iterator[Path]:
    """Our own temporary folders whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)) and folder.is_dir() and folder.stat().st_uid == os.getuid():
            yield folder


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
