"""The project's folder `.opgauge`, which contains the default database; a file in it excludes it from git."""

from __future__ import annotations

import getpass
import tempfile
from pathlib import Path

from opgauge.harness.project.active import active
from opgauge.harness.project.configuration import FOLDER
from opgauge.harness.project.git import git
from opgauge.harness.settings import named_database

DATABASE = "opgauge.db"
"""Name of the default database."""


def find_database(given: str | None = None) -> tuple[str, bool]:
    """URL of the database `given`, of `OPGAUGE_DB` or of the project, else of the default file; whether that is new.

    A plain path names an SQLite file.
    """
    project, is_new = active(), False
    named = given or named_database() or (project.database if project is not None else "")
    if not named:
        file, is_new = default_database()
        named = str(file)
    return named if "://" in named else f"sqlite:///{named}", is_new


def default_database() -> tuple[Path, bool]:
    """SQLite file used by default, and whether its folder was created just now.

    It is `.opgauge/opgauge.db` of the project, else of the repository, else of the current folder. An `opgauge.db`
    in the current folder takes precedence, and the temporary folder is used if the project is read-only.
    """
    former = Path.cwd() / DATABASE
    if former.is_file():
        return former, False
    project = active()
    top = git(Path.cwd(), "rev-parse", "--show-toplevel") if project is None else ""
    root = project.root if project is not None else Path(top or Path.cwd())
    try:
        folder, is_new = make_folder(root / FOLDER)
    except OSError:
        folder, is_new = make_folder(Path(tempfile.gettempdir()) / f"opgauge-{getpass.getuser()}" / root.name)
    return folder / DATABASE, is_new


def make_folder(folder: Path) -> tuple[Path, bool]:
    """The folder, made with a .gitignore for all of it where it is not there, and whether it was made just now."""
    is_new = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if is_new:
        ignore.write_text("*\n", encoding="utf-8")
    return folder, is_new
