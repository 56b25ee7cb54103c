"""The contract between the harness and a tree's `ops`: every name that the harness uses, with a version.

The gate measures two versions of the kernels with one harness. A worker imports `ops` from the given tree and uses
these names and no others; a tree that lacks one cannot be measured, and is reported as such.

`VERSION` is incremented with every name that is added here; reports and stored runs contain it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from opgauge.harness.errors import TreeError
from opgauge.harness.worker.loaded_code import keeping_code
from opgauge.harness.worker.tree import PACKAGE, use_tree

VERSION = 1
"""Version of the contract."""
ASKED = {
    "opgauge.ops": (
        "AxisError",
        "BackendError",
        "Bound",
        "Device",
        "DtypeError",
        "DtypeInfo",
        "Found",
        "Input",
        "Kernel",
        "KernelNotFoundError",
        "Op",
        "OpError",
        "OpNotFoundError",
        "ParameterError",
        "ShapeError",
        "Shapes",
        "TensorSpec",
        "all_ops",
        "available",
        "discover",
        "dtype_info",
        "find_kernel",
        "find_kernel_or_cpu",
        "find_op",
        "kernels",
        "param_values",
    ),
    "opgauge.ops._core.backend": ("cuda_device_count", "cupy", "to_numpy", "to_torch"),
    "opgauge.ops._cuda.source": ("all_sources", "device_arch"),
    "opgauge.ops._core.op": ("Array",),
}
"""Names by module, without which a tree cannot be measured."""
OPTIONAL = {
    "opgauge.ops._core.tuning": (),
    "opgauge.ops._cpu.jit": (),
    "opgauge.ops._cpu.streaming": ("last_cache_bytes",),
    "opgauge.ops._cuda.source": ("recording",),
}
"""Names by module that older trees lack; the harness does without them."""
FIELDS = {
    "Op": ("bound", "derive", "dtypes", "infer", "inputs", "name", "outputs", "params", "reference", "work"),
    "Kernel": ("arrays", "bind", "deterministic", "function", "key", "path", "relaxed", "strided", "workspace"),
}
"""Attributes that the harness uses of two of those names."""


def incompatibility(tree: Path) -> str:
    """Import `opgauge.ops` from `tree`; returns why the tree cannot be measured, empty if it can."""
    if not (tree / "ops" / "__init__.py").is_file():
        return "it has no ops"
    try:
        with keeping_code():
            use_tree(tree)
    except TreeError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  whatever another version of the code raises
        return f"its ops cannot be imported: {type(error).__name__}: {error}"
    missing = [f"{module}.{name}" for module, names in ASKED.items() for name in names if not _has(module, name)]
    if not missing:
        missing = [f"{name}.{item}" for name, items in FIELDS.items() for item in items if item not in _fields(name)]
    return f"its ops have no {', '.join(missing)} (contract {VERSION})" if missing else ""


def project_incompatibility(configuration: Path, tree: Path | None) -> str:
    """Import the ops of a configured project, from another checkout if given; returns why that fails, or empty."""
    from opgauge.harness.errors import HarnessError
    from opgauge.harness.project import active
    from opgauge.harness.project.configuration import read_project

    try:
        active.use(read_project(configuration))
        with keeping_code():
            active.load(tree)
    except HarnessError as error:
        return str(error)
    return ""


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ImportError:
        return False


def _fields(name: str) -> set[str]:
    found: Any = getattr(import_module(PACKAGE), name)
    return set(dir(found)) | set(getattr(found, "__dataclass_fields__", ()))
