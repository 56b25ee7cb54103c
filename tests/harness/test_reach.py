"""Ops that a change of a file can reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgauge.harness.run.reach import reached_folders
from opgauge.harness.settings import ROOT

FILES = {
    "__init__.py": "from opgauge.ops._core.registry import find_op\n",
    "_core/__init__.py": "",
    "_core/registry.py": "from opgauge.ops._core.errors import OpError\n",
    "_core/errors.py": "",
    "_core/axes.py": "",
    "_cuda/__init__.py": "",
    "_cuda/launch.py": 'SOURCE = "reduce.cu"\n',
    "_cuda/reduce.cu": '#include "include/warp.cuh"\n',
    "_cuda/include/warp.cuh": "",
    "_cuda/include/orphan.cuh": "",
    "a/__init__.py": "from opgauge.ops.a import cuda\n",
    "a/cuda.py": "from .._cuda import launch\n",
    "a/kernels.cu": "",
    "b/__init__.py": "",
    "b/cpu.py": 'from importlib import import_module\nimport_module("opgauge.ops._core.axes")\n',
    "b/kernels.cu": '#include "warp.cuh"\n',
    "b/cuda.py": 'NAME = "kernels.cu"\n',
    "c/__init__.py": 'from opgauge.ops._core.registry import find_op\nPART = find_op("b_grad")\n',
    "d/__init__.py": 'NOTE = "b"\n',
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small `ops` folder."""
    made = tmp_path_factory.mktemp("reach") / "ops"
    for name, text in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("_cuda/launch.py", {"a"}),
        ("_cuda/reduce.cu", {"a"}),
        ("_cuda/include/warp.cuh", {"a", "b", "c"}),
        ("_core/axes.py", {"b", "c"}),
        ("_core/registry.py", None),
        ("_core/errors.py", None),
        ("_cuda/include/orphan.cuh", None),
        ("_cuda/include/deleted.cuh", None),
        ("a/kernels.cu", {"a"}),
        ("b/kernels.cu", {"b", "c"}),
        ("b/deleted.py", {"b", "c"}),
        ("d/__init__.py", {"d"}),
    ],
)
def test_a_change_reaches_the_ops_that_use_the_file(root: Path, changed: str, reached: set[str] | None) -> None:
    """Imports, relative and by name, includes, named sources and ops looked up count; unknown uses mean every op."""
    assert reached_folders(root, [root / changed]) == reached


def test_what_is_shared_by_few_shipped_ops_reaches_these() -> None:
    """Tiles of the CPU serve the convolutions, and through them the residual blocks; dtypes serve all."""
    ops = ROOT / "ops"
    reached = reached_folders(ops, [ops / "_cpu/tile/jit.py"])
    assert reached == {"conv_data_grad", "deformable_conv", "residual"}
    assert reached_folders(ops, [ops / "_core/dtype.py"]) is None
