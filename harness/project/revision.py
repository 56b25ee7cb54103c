"""The revision of a project: its name, and git's state of the measured folder.

A folder belongs to a repository only if the repository tracks a file in it. An installation or an unpacked archive
inside another repository therefore has no commit, rather than that repository's.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opgauge.harness.errors import RefError
from opgauge.harness.project.git import git, run_git

DIRTY = "-dirty"
"""Suffix of a commit whose files were modified."""
DESCRIPTION = 200
"""Most characters of an author or a subject that are recorded."""
LIBRARY_PARTS = ("ops", "harness", "cases")
"""Folders of an opgauge source tree that affect measurements."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Name and git state of a folder; fields are empty if git does not know them.

    commit: full hash, without suffix. is_dirty: whether measured files differ from it. branch: as checked out.
    time: the committer's time, ISO 8601 in UTC. author: name of the author. subject: first line of the message.
    """

    project: str = ""
    commit: str = ""
    is_dirty: bool = False
    branch: str = ""
    time: str = ""
    author: str = ""
    subject: str = ""

    @property
    def label(self) -> str:
        """The commit, with `-dirty` if measured files differ from it."""
        return self.commit + (DIRTY if self.is_dirty else "")

    def entries(self) -> dict[str, str]:
        """Entries of a run's environment."""
        dirty = {"dirty": "yes" if self.is_dirty else "no"} if self.commit else {}
        return {
            "project": self.project,
            "commit": self.label,
            "commit_time": self.time,
            "commit_author": self.author,
            "commit_subject": self.subject,
            "branch": self.branch,
            **dirty,
        }


def repository_top(tree: Path) -> Path:
    """The folder of the repository that `tree` is in; `tree` without one."""
    return Path(git(tree, "rev-parse", "--show-toplevel") or tree)


def read_revision(tree: Path, *, except_files: Iterable[Path] = ()) -> Revision:
    """The revision of `tree`, with the project's name; never raises.

    except_files: files that may differ from the commit, such as the one that `opgauge tune` writes.
    """
    name = project_name(tree)
    if not is_tracked(tree):
        return Revision(project=name)
    shown = git(tree, "log", "-1", "--format=%H%x00%ct%x00%an%x00%s")
    commit, seconds, author, subject = (*shown.split("\0", 3), "", "", "", "")[:4]
    time = datetime.fromtimestamp(int(seconds), UTC).isoformat() if seconds.isdigit() else ""
    return Revision(
        project=name,
        commit=commit,
        is_dirty=bool(commit) and _differs(tree, except_files),
        branch=git(tree, "symbolic-ref", "--quiet", "--short", "HEAD"),
        time=time,
        author=author[:DESCRIPTION],
        subject=subject[:DESCRIPTION],
    )


def is_tracked(tree: Path) -> bool:
    """Whether a git repository tracks files of `tree`, or has its top level there."""
    top = git(tree, "rev-parse", "--show-toplevel")
    if not top:
        return False
    return Path(top).resolve() == tree.resolve() or bool(git(tree, "ls-files", "--", "."))


def ownership_note(tree: Path) -> str:
    """Why git refuses to read the repository of `tree`, which belongs to another user, and the remedy; else empty."""
    try:
        error = run_git(tree, "rev-parse", "--show-toplevel").stderr
    except RefError:
        return ""
    if "dubious ownership" not in error:
        return ""
    # git names the folder between quotes
    folder = error.partition("'")[2].partition("'")[0] or str(tree)
    return (
        f"the commit is unknown: git does not read {folder}, which belongs to another user; "
        f"git config --global --add safe.directory {shlex.quote(folder)}"
    )


def project_name(tree: Path) -> str:
    """Name in the nearest pyproject.toml of the folder or its repository, else that of its remote or folder."""
    top = git(tree, "rev-parse", "--show-toplevel") if is_tracked(tree) else ""
    folders = [tree.resolve()] if not top else _up_to(tree.resolve(), Path(top).resolve())
    for folder in folders:
        name = _declared_name(folder / "pyproject.toml")
        if name:
            return name
    remote = git(tree, "config", "--get", "remote.origin.url") if top else ""
    from_remote = remote.rstrip("/").removesuffix(".git").replace(":", "/").rpartition("/")[2]
    return from_remote or (Path(top).name if top else tree.resolve().name)


def exclusions(tree: Path, files: Iterable[Path]) -> list[str]:
    """Git's patterns that leave out files of `tree`."""
    inside = [file.resolve() for file in files if file.resolve().is_relative_to(tree.resolve())]
    return [f":(exclude,literal){file.relative_to(tree.resolve()).as_posix()}" for file in inside]


def _differs(tree: Path, except_files: Iterable[Path]) -> bool:
    """Whether tracked files differ from the commit; in an opgauge source tree, new files of its folders count too."""
    exclude = exclusions(tree, except_files)
    if (tree / "ops" / "_core").is_dir():
        parts = [name for name in LIBRARY_PARTS if (tree / name).exists()]
        return bool(git(tree, "status", "--porcelain", "--", *parts, *exclude))
    return bool(git(tree, "status", "--porcelain", "--untracked-files=no", "--", ".", *exclude))


def _up_to(folder: Path, top: Path) -> list[Path]:
    return [one for one in (folder, *folder.parents) if one == top or one.is_relative_to(top)]


def _declared_name(file: Path) -> str:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    name = found.get("tool", {}).get("opgauge", {}).get("name") or found.get("project", {}).get("name")
    return name if isinstance(name, str) else ""
