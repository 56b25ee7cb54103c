"""The examples: each registers its op, loads its cases, and is right where its device and libraries are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from opgauge.harness.project.configuration import find_project
from tests.draws import some

ROOT = Path(__file__).parent.parent
EXAMPLES = {folder.name: folder for folder in sorted((ROOT / "examples").iterdir()) if folder.is_dir()}
WITH_TORCH = ("torch", "torch_library")
"""Examples for the CPU that import torch, which takes most of their time: a run takes one of them."""
WITHOUT_TORCH = ("numba", "numpy")
ON_CPU = (*WITHOUT_TORCH, *WITH_TORCH)
ON_CUDA = ("cuda_file", "cupy_raw_kernel", "jax", "numba_cuda", "torch", "torch_library", "triton")
MODULES = {
    "jax": "jax",
    "numba_cuda": "numba_cuda",
    "triton": "triton",
    "torch": "torch",
    "torch_library": "torch",
    "torch_extension": "torch",
}


def run(folder: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`opgauge run` of the smallest cases in a folder."""
    command = [sys.executable, "-P", "-m", "opgauge", "run", "--tag", "smoke", "--json", "--budget", "0.01", *arguments]
    return subprocess.run(
        [*command, "--db", str(tmp_path / "runs.db")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Every result is right."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found
    assert {one["status"] for one in found} == {"ok"}


@pytest.mark.parametrize("name", [*WITHOUT_TORCH, *some("torch examples", WITH_TORCH, 1)])
def test_examples_are_right_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Returned and filled outputs, several of them, an overwritten input, Numba and torch."""
    pytest.importorskip(MODULES.get(name, "numpy"))
    check(run(EXAMPLES[name], tmp_path, "--device", "cpu"))


@pytest.mark.thorough
def test_the_extension_is_built_before_it_is_measured(tmp_path: Path) -> None:
    """The build command compiles the C++ operator in the tree."""
    if shutil.which("ninja") is None or find_spec("torch") is None:
        pytest.skip("needs torch and ninja")
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES["torch_extension"], folder, ignore=shutil.ignore_patterns("build"))
    check(run(folder, tmp_path, "--device", "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_CUDA)
def test_examples_are_right_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Triton, JAX, CuPy, Numba, a plain `.cu` file and torch, each on the stream that is timed."""
    module = pytest.importorskip(MODULES.get(name, "cupy"))
    if name == "numba_cuda" and not pytest.importorskip("numba.cuda").__file__.startswith(module.__path__[0]):
        pytest.skip("numba-cuda is installed without its redirection of numba.cuda")
    if name == "numba_cuda" and not hasattr(np, "row_stack"):
        pytest.skip("numba-cuda 0.30 needs NumPy below 2.5")
    check(run(EXAMPLES[name], tmp_path, "--device", "cuda"))


def test_every_example_is_a_project() -> None:
    """Each has a configuration and cases, is tested on some device, and is named in the README."""
    assert set(EXAMPLES) == {*ON_CPU, *ON_CUDA, "torch_extension"}
    readme = (ROOT / "examples" / "README.md").read_text()
    for name, folder in EXAMPLES.items():
        project = find_project(folder)
        assert project is not None
        assert project.root == folder
        assert project.cases
        assert f"| `{name}` |" in readme


def test_init_writes_a_working_example(tmp_path: Path) -> None:
    """What `opgauge init` writes runs as it is, stores into `.opgauge/`, and is not written twice."""
    command = [sys.executable, "-P", "-m", "opgauge", "init"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    check(run(tmp_path, tmp_path, "--device", "cpu"))
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 2
    assert len((tmp_path / "kernels_bench.py").read_text().splitlines()) <= 30
    schema = json.loads((tmp_path / ".opgauge" / "case.schema.json").read_text())
    assert schema["properties"]["op"]["enum"] == ["scaled_sum"]
