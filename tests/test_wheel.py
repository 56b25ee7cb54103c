"""The wheel: what an installed opgauge needs beside its modules is in it."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest
from opgauge.harness.settings import ROOT

NEEDED = (
    "cases/*.yaml",
    "harness/**/*.cu",
    "ops/**/*.cu",
    "ops/**/*.cuh",
    "ops/tuning/*.json",
    "web/static/**/*",
    "web/templates/*",
    "harness/store/migrations/**/*.py",
    "*/py.typed",
)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built of this tree, with what is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", str(folder), str(ROOT)], check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as wheel:
        return set(wheel.namelist())


@pytest.mark.parametrize("pattern", NEEDED)
def test_the_wheel_has_every_file_that_is_no_module(listing: set[str], pattern: str) -> None:
    """Cases, CUDA sources, pages with their scripts and styles, migrations."""
    wanted = {
        f"opgauge/{path.relative_to(ROOT).as_posix()}"
        for path in ROOT.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted
    assert wanted - listing == set()


def test_the_wheel_has_nothing_of_the_rest(listing: set[str]) -> None:
    """No tests, no data, no databases."""
    roots = {name.partition("/")[0] for name in listing}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"opgauge"}
    assert not [name for name in listing if name.endswith((".db", ".pyc")) or "/package/" in name]
    assert "opgauge/__init__.py" in listing
