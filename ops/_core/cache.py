"""Folders for compiled code where a checkout cannot be written: the user's, else one in the temporary folder."""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path

PRIVATE = 0o700
"""Mode of a folder that only its owner can read and write."""


@cache
def cache_folder(name: str) -> Path:
    """Writable folder `name` for compiled code, in the user's cache folder, else below the temporary folder.

    Compiled code is executed, so a folder below the temporary folder is used only if nobody else can write to it.
    """
    user = user_cache()
    if user is not None and is_writable(user / name):
        return user / name
    shared = Path(tempfile.gettempdir()) / f"opgauge-{os.getuid()}"
    if not _is_private(shared):
        shared = Path(tempfile.mkdtemp(prefix="opgauge-"))
    folder = shared / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def user_cache() -> Path | None:
    """Folder `opgauge` in the user's cache folder; None without a writable home folder."""
    try:
        folder = Path.home() / ".cache" / "opgauge"
    except RuntimeError:  # no home folder is known
        return None
    return folder if is_writable(folder) else None


def is_writable(folder: Path) -> bool:
    """Whether files can be written to a folder, which is created if missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _is_private(folder: Path) -> bool:
    """Whether a folder belongs to this user alone; it is created if missing."""
    try:
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
