"""The code that a process runs: functions of the harness, of NumPy and of clocks, registered ops, modules and hooks.

A kernel that replaces some of it could report any time, or slow down the kernels that it is compared with.
"""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

CLOCKS = ("perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "monotonic", "monotonic_ns", "time")
"""Functions of `time` that measure."""
HARNESS = "opgauge.harness."
"""Start of the names of the harness's modules."""


def hooks() -> tuple[Any, ...]:
    """Hooks that the interpreter calls beside running code."""
    monitoring = getattr(sys, "monitoring", None)
    tools = () if monitoring is None else tuple(monitoring.get_tool(number) for number in range(6))
    hooks = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile(), sys.excepthook)
    return (*map(id, (*hooks, builtins.__import__, builtins.open, builtins.id)), *tools)


def definitions() -> dict[str, Any]:
    """The registered ops and kernels, which judge outputs and are measured."""
    registry: Any = sys.modules.get("opgauge.ops._core.registry")
    found: dict[str, Any] = {}
    for name, op in list(getattr(registry, "_OPS", {}).items()):
        parts = (op.reference, op.bound, op.infer, op.derive, op.work)
        found[f"op {name}"] = tuple((id(one), id(getattr(one, "__code__", None))) for one in parts)
    for key, kernel in list(getattr(registry, "_KERNELS", {}).items()):
        found[f"kernel {key}"] = (id(kernel), id(kernel.function), kernel.relaxed, kernel.deterministic)
    return found


def changed_modules(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    """Packages that were replaced or removed; compilers replace modules within their own, and those they generate."""
    names = [name for name, value in old.items() if "." not in name and new.get(name) != value and _is_found(name)]
    return f"replaced or removed modules ({', '.join(names[:3])})" if names else ""


def _is_found(name: str) -> bool:
    """Whether an import finds this module; a launcher that Triton has built for a kernel is not."""
    for finder in sys.meta_path:
        with suppress(Exception):
            if finder.find_spec(name, None) is not None:
                return True
    return False


def code() -> dict[str, Any]:
    """Functions of the harness, of clocks and of the checks: name, object and code."""
    found: dict[str, Any] = {f"time.{name}": id(getattr(time, name)) for name in CLOCKS}
    found |= {f"gc.{name}": id(getattr(gc, name)) for name in ("collect", "disable", "enable")}
    found |= {f"numpy.{name}": id(value) for name, value in list(vars(np).items()) if callable(value)}
    device = sys.modules.get("cupy.cuda")
    if device is not None:
        found |= {
            f"cupy.cuda.{name}": id(getattr(device, name, None)) for name in ("get_elapsed_time", "Event", "Stream")
        }
    for name, module in list(sys.modules.items()):
        if name.startswith(HARNESS) and isinstance(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType):
                    found[f"{name}.{key}"] = (id(value), id(value.__code__), id(value.__defaults__))
                elif isinstance(value, type) and value.__module__ == name:
                    found |= {
                        f"{name}.{key}.{one}": (id(item), id(getattr(item, "__code__", None)))
                        for one, item in vars(value).items()
                        if callable(item)
                    }
                elif isinstance(value, (types.BuiltinFunctionType, float, int, str)) and not key.startswith("__"):
                    found[f"{name}.{key}"] = value if isinstance(value, (float, int, str)) else id(value)
    return found


def changed_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names of functions, ops or kernels that differ; new ones may be imported or registered."""
    names = [name for name, value in old.items() if new.get(name) != value]
    return f"replaced {', '.join(names[:3])}" if names else ""
