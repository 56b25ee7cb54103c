"""Verbs in a project of somebody else: which project they take, how they end and what they name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opgauge.harness.cli.app import program_options_first
from tests.tinytree import ROOT


def opgauge(folder: Path, *arguments: str, code: int) -> str:
    """What `opgauge` prints in a folder, which ends with `code`."""
    command = [sys.executable, "-m", "opgauge", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": f"{ROOT / 'tools' / 'package'}:{ROOT}"}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_verbs_in_a_project_from_outside(tmp_path: Path) -> None:
    """`--config` follows the verb, `compile` ends as `run` does for a wrong kernel, and a database is named by path."""
    folder = tmp_path / "prüf folder"
    opgauge(tmp_path, "init", folder.name, code=0)
    configuration = str(folder / "opgauge.toml")
    compiling = ("compile", "--tag", "smoke", "--device", "cpu", "--workers", "1")
    assert "4 of 4 trials compiled and valid" in opgauge(tmp_path, *compiling, "--config", configuration, code=0)
    bench = folder / "kernels_bench.py"
    bench.write_text(bench.read_text().replace("type(factor) * y", "type(factor + 1) * y"))
    assert "2 of 4 trials compiled and valid" in opgauge(folder, *compiling, code=3)
    assert f"no run yet in {folder}/x.db;" in opgauge(tmp_path, "show", "--db", str(folder / "x.db"), code=5)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("run --config a.toml --op x", "--config a.toml run --op x"),
        ("run --config=a.toml --builtin", "--config=a.toml --builtin run"),
        ("run -- --config a", "run -- --config a"),
        ("run --config", "--config run"),
    ],
)
def test_options_of_the_program_go_first(given: str, first: str) -> None:
    """With their values; a missing one is left to the parser."""
    assert program_options_first(given.split()) == first.split()
