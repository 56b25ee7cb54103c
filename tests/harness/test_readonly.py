"""A checkout and a home folder that cannot be written: compiled code goes to the temporary folder.

Files that stand where folders would be made refuse to be written for root too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from opgauge.ops._core import cache
from tests.tinytree import ROOT, TinyTree


def without_cache(folder: Path) -> Path:
    """A copy of this tree in which no folder can hold compiled code."""
    skipped = shutil.ignore_patterns("__pycache__", "*.cu", "*.cuh", "static", "templates")
    for part in ("ops", "harness", "tools/package"):
        shutil.copytree(ROOT / part, folder / part, ignore=skipped)
    for package in [path for path in folder.rglob("*") if path.is_dir()]:
        (package / "__pycache__").write_text("")
    (folder / "cases").mkdir()
    shutil.copy(ROOT / "cases" / "fill_any_like.yaml", folder / "cases")
    return folder


def test_kernels_are_compiled_without_a_writable_checkout_or_home(tmp_path: Path) -> None:
    """`run` and `call` of our own Numba kernels cache below the temporary folder, for this user alone."""
    tree = without_cache(tmp_path / "tree")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    unset = {"NUMBA_CACHE_DIR", "OPGAUGE_DB", "OPGAUGE_CONFIG", "XDG_CACHE_HOME"}
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    variables |= {
        "HOME": "/dev/null",
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(tree / "tools" / "package"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_OPT": "2",
    }

    def python(*arguments: str) -> str:
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(
            command, cwd=tree, env=variables, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    chosen = ("cases", "--tag", "smoke", "--dtype", "float32", "--device", "cpu", "-i", "optimized", "--budget", "0.01")
    said = python("-m", "opgauge", "run", *chosen, "--json", "--db", str(tmp_path / "runs.db"))
    assert {one["status"] for one in json.loads(said)} == {"ok"}
    call = "import numpy, opgauge; print(opgauge.call('sign', x=numpy.ones(3, numpy.float32)))"
    assert python("-c", call).strip() == "[1. 1. 1.]"
    (folder,) = temporary.glob(f"opgauge-{os.getuid()}")
    assert list((folder / "numba").rglob("*.nbi"))
    assert folder.stat().st_mode & 0o077 == 0


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the temporary folder that others can write is not used: code in it would be executed."""
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    prepared = tmp_path / f"opgauge-{os.getuid()}"
    prepared.mkdir()
    prepared.chmod(0o777)
    cache.user_cache.cache_clear()
    cache.cache_folder.cache_clear()
    try:
        found = cache.cache_folder("numba")
    finally:
        cache.user_cache.cache_clear()
        cache.cache_folder.cache_clear()
    assert found.is_relative_to(tmp_path)
    assert not found.is_relative_to(prepared)


def test_the_gate_clones_where_git_cannot_be_written(tmp_path: Path) -> None:
    """Where no worktree can be added, the base is a clone in the temporary folder; nothing of it is left."""
    tree = TinyTree(tmp_path / "repository")
    tree.set_ops("tiny", {"steady": "sane"})
    tree.commit("first")
    (tree.path / ".git" / "worktrees").write_text("")
    quick = ("--pairs", "1", "--most-pairs", "1", "--block-s", "0.01", "--device", "cpu")
    found = json.loads(tree.opgauge("gate", "--base", "HEAD", "--all", *quick, "--json", code=4))
    assert [(one["op"], one["kind"]) for one in found["cases"]] == [("steady", "compared")]
