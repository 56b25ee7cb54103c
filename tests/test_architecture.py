"""Rules of the project that no linter holds: who names what, who imports whom."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from opgauge import ops

ROOT = Path(ops.__file__).parent.parent
SOURCES = sorted(path for folder in ("ops", "harness", "web") for path in (ROOT / folder).rglob("*.py"))
OPS = sorted(path.name for path in (ROOT / "ops").iterdir() if path.is_dir() and not path.name.startswith("_"))
GPU_FILES = {"ops/_core/backend.py", "ops/_cuda/source.py"}
NUMBA_FILES = {"ops/_cpu/tile/assembly.py", "harness/worker/compiled_cache.py"}
"""Files besides kernels that import Numba: one writes assembly for it, the other is loaded by its cache."""
READS_ENVIRONMENT = {
    "harness/settings.py",
    "harness/run/worker_process.py",
    "harness/trust/planted.py",
    "harness/worker/environment_variables.py",
}
AT_THE_TOP = {
    *(
        ".ci",
        ".github",
        ".gitignore",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "action.yml",
    ),
    *("cases", "ci", "docs", "examples", "harness", "mkdocs.yml", "ops", "pyproject.toml", "requirements", "tests"),
    *("tools", "web"),
}
"""Files and folders at the root of the repository."""
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}


def relative(path: Path) -> str:
    """A source by its path from the root."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """A source, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every module imported under `node`, and whether at module level."""
    for child in ast.walk(node):
        names = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            names = [child.module]
        for name in names:
            yield name, child in getattr(node, "body", [])


def strings(node: ast.AST) -> Iterator[str]:
    """Every string of a source that is no docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(child.body[0].value)
        for child in ast.walk(node)
        if isinstance(child, documented) and child.body and isinstance(child.body[0], ast.Expr)
    }
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str) and id(child) not in docstrings:
            yield child.value


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_gpu_libraries_are_imported_where_used(path: Path) -> None:
    """CuPy is imported in two files only; it, torch and cuda-core never at module level, Numba where kernels are."""
    for name, at_module_level in imports(tree(path)):
        root = name.partition(".")[0]
        if root == "cupy":
            assert relative(path) in GPU_FILES
        if root in {"cupy", "torch", "torchvision", "cuda", "pynvml"}:
            assert not at_module_level
        if root in {"numba", "llvmlite"} and at_module_level:
            assert path.name.startswith("jit") or relative(path) in NUMBA_FILES
        if root == "dask":
            assert relative(path).startswith("harness/cluster/")


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_sources_keep_to_the_rules(path: Path) -> None:
    """No assert; few modules read the environment; CUDA code is in .cu files; names say something."""
    parsed = tree(path)
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(parsed))
    reads = [
        node for node in ast.walk(parsed) if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    assert not reads or relative(path) in READS_ENVIRONMENT
    assert not any("__global__" in text for text in strings(parsed))
    assert path.stem not in VAGUE


@pytest.mark.parametrize("folder", OPS)
def test_one_op_imports_no_other(folder: str) -> None:
    """What two ops share lives in ops/_core, ops/_cuda or ops/_cpu."""
    for path in sorted((ROOT / "ops" / folder).rglob("*.py")):
        for name, _ in imports(tree(path)):
            parts = name.split(".")
            if parts[:2] == ["opgauge", "ops"] and len(parts) > 2:
                assert parts[2] in {"_core", "_cpu", "_cuda", folder}, f"{relative(path)} imports {name}"


@pytest.mark.parametrize("folder", OPS)
def test_compiled_code_of_an_op_imports_none_of_its_files(folder: str) -> None:
    """Numba's cache notices changes in a kernel's own file and in ops/_cpu, not in a neighbour that it calls."""
    for path in sorted((ROOT / "ops" / folder).rglob("jit*.py")):
        assert not [name for name, _ in imports(tree(path)) if name.startswith(f"opgauge.ops.{folder}")]


def test_listing_loads_no_gpu_library() -> None:
    """`from opgauge import ops` in a fresh process loads neither CuPy, Numba, torch nor cuda-core."""
    libraries = {"cupy", "numba", "torch", "cuda", "pynvml"}
    code = f"from opgauge import ops; import sys; print(sorted({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_gate_of_two_trees_loads_no_database() -> None:
    """SQLAlchemy takes half of the time until a gate without stored runs starts its processes."""
    code = "from opgauge.harness.gate import run, forecast; import sys; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("op", ops.all_ops(), ids=lambda op: op.name)
def test_every_kernel_is_listed_without_a_gpu(op: ops.Op) -> None:
    """An op has an optimized kernel for each backend with a module in its folder: `cpu.py`, `cuda.py` or both.

    A fused graph generates its kernels for both.
    """
    folder = Path(inspect.getfile(op.infer)).parent
    backends = {name for name in ("cpu", "cuda") if (folder / f"{name}.py").is_file()} or {"cpu", "cuda"}
    dtype = "float32" if "float32" in op.dtypes else op.dtypes[0]
    listed = {item.key.backend for item in ops.kernels(op=op.name, implementation="optimized", dtype=dtype)}
    assert listed == backends


def test_nothing_else_is_at_the_top() -> None:
    """What a tool leaves there, such as a downloaded package, is easily committed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.partition("/")[0] for name in listed.stdout.split("\n") if name} == AT_THE_TOP
