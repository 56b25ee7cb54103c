"""Compiled kernels are found again by the content of their sources, wherever these are, and never if it differs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import time

import pytest

from opgauge.harness import caches
from opgauge.harness.worker.compiled_cache import digest
from opgauge.ops._core import cache

HELPER = "from numba import njit\n@njit(cache=True)\ndef step(): return 1\n"
KERNEL = """
from numba import njit
from opgauge.ops._cpu.helper import step


@njit(cache=True)
def run():
    return {} + step()
"""
CALL = """
import json, os, sys
from pathlib import Path
from opgauge.harness.worker.tree import use_tree
use_tree(Path(sys.argv[1]))
from importlib import import_module
run = import_module("opgauge.ops.one.jit").run
print(json.dumps([run(), sum(run.stats.cache_hits.values())]))
"""


def tree(folder: Path, *, factor: int = 10, helper: str = HELPER) -> Path:
    """A small `ops` with one kernel that inlines a function of another file."""
    for name, text in {
        "__init__.py": '"""Ops."""\n',
        "_cpu/__init__.py": "",
        "_cpu/helper.py": helper,
        "one/__init__.py": "",
        "one/jit.py": KERNEL.format(factor),
        "other/jit.py": "",
    }.items():
        file = folder / "ops" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(Path(cache.__file__).parent, folder / "ops" / "_core", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def call(folder: Path, home: Path) -> list[int]:
    """Value of the kernel, and whether its compiled code was found."""
    environment = {**os.environ, **caches.CACHED_BY_CONTENT, "HOME": str(home)}
    command = [sys.executable, "-c", CALL, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def test_compiled_code_is_shared_by_equal_sources_only(tmp_path: Path) -> None:
    """A tree elsewhere finds it; one whose kernel, or inlined function, differs compiles its own."""
    assert call(tree(tmp_path / "a"), tmp_path) == [11, 0]
    assert call(tree(tmp_path / "b"), tmp_path) == [11, 1]
    assert call(tree(tmp_path / "c", factor=20), tmp_path) == [21, 0]
    changed = HELPER.replace("return 1", "return 2")
    assert call(tree(tmp_path / "d", helper=changed), tmp_path) == [12, 0]


def test_sources_of_other_ops_do_not_count(tmp_path: Path) -> None:
    """The digest covers the op's folder, the shared folders and the files beside them."""
    root = tree(tmp_path / "a") / "ops"
    before = digest.__wrapped__(root, "one")
    (root / "other" / "jit.py").write_text("changed = True\n")
    assert digest.__wrapped__(root, "one") == before
    for name in ("__init__.py", "_cpu/helper.py", "one/jit.py"):
        file = root / name
        text = file.read_text()
        file.write_text(text + "changed = True\n")
        assert digest.__wrapped__(root, "one") != before, name
        file.write_text(text)


def test_code_that_was_not_used_for_a_month_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders in use stay."""
    monkeypatch.setattr(cache, "cache_folder", lambda name: tmp_path / name)
    for name, age_s in (("old", 40 * 86_400), ("new", 86_400)):
        folder = tmp_path / caches.COMPILED / name
        folder.mkdir(parents=True)
        os.utime(folder, (time() - age_s,) * 2)
    caches.remove_unused()
    assert [path.name for path in (tmp_path / caches.COMPILED).iterdir()] == ["new"]
