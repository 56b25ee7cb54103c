"""Objects that find modules: one that a kernel adds decides what later kernels import."""

from __future__ import annotations

import sys
from importlib.machinery import FileFinder
from typing import Any
from zipimport import zipimporter

INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries, some of which find modules of their own."""
CACHED = (FileFinder, zipimporter, type(None))
"""Types of the finders of folders that the interpreter caches."""


def import_hooks() -> tuple[Any, ...]:
    """Finders of modules, functions that make finders of folders, and finders of folders of unusual types."""
    cached = [one for one in list(sys.path_importer_cache.values()) if type(one) not in CACHED]
    return *sys.meta_path, *sys.path_hooks, *cached


def changed_import_hooks(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    """Text about finders that are new or gone; those of libraries may be new."""
    added = [one for one in new if not _is_among(one, old) and not _is_installed(one)]
    is_changed = added or [one for one in old if not _is_among(one, new)]
    return "changed how modules are found" if is_changed else ""


def _is_among(one: Any, many: tuple[Any, ...]) -> bool:
    return any(one is other for other in many)


def _is_installed(finder: Any) -> bool:
    """Whether a finder's class is part of a module of an installed library."""
    kind = finder if isinstance(finder, type) else type(finder)
    module = sys.modules.get(kind.__module__)
    file = str(getattr(module, "__file__", None) or "")
    return getattr(module, kind.__name__, None) is kind and any(folder in file for folder in INSTALLED)
