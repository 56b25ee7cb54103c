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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from opgauge.harness.errors import TreeError

CLOCKS = ("perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "monotonic", "monotonic_ns", "time")
"""Functions of `time` that measure."""
SCALARS = (np.generic, bool, int, float, complex, str)
"""Scalar types, whose names in NumPy old code replaces."""
HARNESS = "opgauge.harness."
"""Start of the names of the harness's modules."""


def hooks() -> tuple[Any, ...]:
    """Hooks that the interpreter calls beside running code."""
    monitoring = getattr(sys, "monitoring", None)
    tools = () if monitoring is None else tuple(monitoring.get_tool(number) for number in range(6))
    return (*tracers(), id(sys.excepthook), *tools)


def tracers() -> tuple[int, ...]:
    """Functions that the interpreter calls with each call or line."""
    return tuple(map(id, (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())))


@contextmanager
def keeping_code() -> Iterator[None]:
    """Context of imports from a measured tree; raises TreeError if they replace code that times or judges."""
    before, traced = code(), tracers()
    yield
    changed = changed_code(before, code()) or ("installed a tracer" if tracers() != traced else "")
    if changed:
        msg = f"importing its ops {changed}"
        raise TreeError(msg)


def definitions() -> dict[str, Any]:
    """The registered ops and kernels, which judge outputs and are measured."""
    registry: Any = sys.modules.get("opgauge.ops._core.registry")
    found: dict[str, Any] = {}
    for name, op in list(getattr(registry, "_OPS", {}).items()):
        parts = (op.reference, op.bound, op.infer, op.derive, op.work)
        owner = getattr(getattr(op.bound, "__self__", op), "__dict__", {}).items()
        found[f"op {name}"] = (
            *((id(one), id(getattr(one, "__code__", None))) for one in parts),
            *((key, id(item)) for key, item in owner),
        )
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
    for module in (builtins, np, np.linalg, np.random):
        for name, value in list(vars(module).items()):
            # old code sets np.bool to bool: no check uses NumPy's scalar types by name
            is_scalar = module is np and isinstance(value, type) and issubclass(value, SCALARS)
            if callable(value) and not is_scalar:
                found[f"{module.__name__}.{name}"] = id(value)
    device = sys.modules.get("cupy.cuda")
    if device is not None:
        found |= {
            f"cupy.cuda.{name}": id(getattr(device, name, None)) for name in ("get_elapsed_time", "Event", "Stream")
        }
    for name, module in list(sys.modules.items()):
        if name.startswith(HARNESS) and isinstance(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    found |= _parts(f"{name}.{key}", value, name)
    return found


def _parts(name: str, value: Any, module: str) -> dict[str, Any]:
    """A function, constant, table, or methods and properties of a module, by name; new entries are new names."""
    match value:
        case types.FunctionType():
            return {name: (id(value), id(value.__code__), id(value.__defaults__))}
        case types.BuiltinFunctionType():
            return {name: id(value)}
        case float() | int() | str() | tuple():
            return {name: value}
        case dict():
            return {f"{name}[{key!r}]": id(item) for key, item in list(value.items()) if isinstance(key, str)}
        case type() if value.__module__ == module:
            items = [(key, item) for key, item in list(vars(value).items()) if hasattr(type(item), "__get__")]
            return {f"{name}.{key}": (id(item), id(getattr(item, "__code__", None))) for key, item in items}
    return {}


def changed_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names of functions, ops or kernels that differ; new ones may be imported or registered."""
    names = [name for name, value in old.items() if new.get(name) != value]
    return f"replaced {', '.join(names[:3])}" if names else ""
