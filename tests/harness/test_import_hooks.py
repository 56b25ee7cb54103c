"""Finders of modules that are new or gone are told, those of installed libraries are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from opgauge.harness.worker.import_hooks import changed_import_hooks, import_hooks

TOLD = "changed how modules are found"


class Finder:
    """Finds no module."""

    @staticmethod
    def find_spec(*_: Any) -> None:
        """Returns None."""


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(sys, "meta_path", [Finder, *sys.meta_path]),
        lambda patch: patch.setattr(sys, "meta_path", [*sys.meta_path, Finder()]),
        lambda patch: patch.setattr(sys, "meta_path", sys.meta_path[1:]),
        lambda patch: patch.setattr(sys, "path_hooks", [lambda _: Finder(), *sys.path_hooks]),
        lambda patch: patch.setitem(sys.path_importer_cache, "/nowhere", Finder()),
    ],
)
def test_a_strange_finder_is_told(change: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A class, an object, one that is gone, and finders of folders."""
    before = import_hooks()
    change(monkeypatch)
    assert changed_import_hooks(before, import_hooks()) == TOLD


def test_a_finder_of_a_library_may_be_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class is part of an installed module; one that only says so is told."""
    library: Any = ModuleType("library")
    library.__file__ = str(Path("lib", "site-packages", "library.py"))
    library.Finder = type("Finder", (Finder,), {"__module__": "library"})
    monkeypatch.setitem(sys.modules, "library", library)
    before = import_hooks()
    assert not changed_import_hooks(before, (library.Finder(), *before))
    del library.Finder
    pretended = type("Finder", (Finder,), {"__module__": "library"})
    assert changed_import_hooks(before, (pretended(), *before)) == TOLD
