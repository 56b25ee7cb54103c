"""Wheel and source distribution: complete, free of everything else, and usable beside modules of the same names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

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


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
FROM_HERE = ("--no-deps", "--no-index")
STRANGERS = ("ops.py", "harness/__init__.py", "web/__init__.py", "web/py.py")
"""Modules of other distributions that have the names of this project's folders."""


def build_wheel(source: Path, folder: Path) -> Path:
    """A wheel of a source tree or a source distribution, built with what is installed here."""
    command = [*PIP, "wheel", *FROM_HERE, "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel of this tree, and one of its source distribution."""
    folder = tmp_path_factory.mktemp("distributions")
    (folder / "tree").mkdir()
    (folder / "sdist").mkdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    return {"tree": build_wheel(ROOT, folder / "tree"), "sdist": build_wheel(archive, folder / "sdist")}


@pytest.fixture(scope="module")
def listing(wheels: dict[str, Path]) -> set[str]:
    """Names in the wheel of this tree."""
    return names(wheels["tree"])


def names(wheel: Path) -> set[str]:
    """Names of the files in a wheel."""
    return set(contents(wheel))


def contents(wheel: Path) -> dict[str, int]:
    """Checksums of the files in a wheel by their names."""
    with zipfile.ZipFile(wheel) as opened:
        return {one.filename: one.CRC for one in opened.infolist()}


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


def test_the_source_distribution_gives_the_same_wheel(wheels: dict[str, Path]) -> None:
    """Nothing that the wheel needs is missing from the source distribution, or other there: one is installed below."""
    assert contents(wheels["sdist"]) == contents(wheels["tree"])


def test_an_installation_works_beside_modules_of_the_same_names(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Modules called ops, harness and web are neither overwritten nor imported; `init` and `run` work as installed."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in STRANGERS:
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text('raise ImportError("a module of somebody else")\n')
    before = {path: path.read_text() for path in packages.rglob("*.py")}
    subprocess.run(
        [*PIP, "--python", str(python), "install", *FROM_HERE, str(wheels["sdist"])], check=True, timeout=120
    )
    assert {path: path.read_text() for path in before} == before
    added = {path.name for path in packages.iterdir()} - {Path(name).parts[0] for name in STRANGERS}
    assert {name for name in added if not name.endswith(".dist-info")} == {"opgauge"}
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    folder = tmp_path / "project"
    folder.mkdir()
    unset = {"PYTHONPATH", "OPGAUGE_DB", "OPGAUGE_CONFIG"}
    variables = {name: value for name, value in os.environ.items() if name not in unset}

    def installed(*arguments: str) -> str:
        done = subprocess.run(
            [str(python), *arguments],
            cwd=folder,
            env=variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert Path(installed("-c", "import opgauge; print(opgauge.__file__)").strip()).is_relative_to(packages)
    installed("-m", "opgauge", "init")
    found = json.loads(
        installed("-m", "opgauge", "run", "--device", "cpu", "--tag", "smoke", "--json", "--budget", "0.01")
    )
    assert {(one["op"], one["status"]) for one in found} == {("scaled_sum", "ok")}
    assert (folder / ".opgauge" / "opgauge.db").is_file()
    shipped = json.loads(installed("-m", "opgauge", "list", "--builtin", "--op", "dot", "--json"))
    assert {one["op"] for one in shipped} == {"dot"}
