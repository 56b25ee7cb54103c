"""The code that a process runs: functions of the harness, of NumPy and of clocks, registered ops, modules and hooks.

A kernel that replaces some of it could report any time, or slow down the kernels that it is compared with.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from opgauge.harness.errors import TreeError
from opgauge.harness.worker.signal_handlers import changed_handlers, put_back_handlers, signal_handlers

STANDARD = (
    "builtins",
    "ctypes",
    "gc",
    "hashlib",
    "json",
    "math",
    "mmap",
    "os",
    "resource",
    "signal",
    "threading",
    "time",
)
"""Modules of the standard library whose functions the harness calls by the module's name."""
NUMPY = ("numpy._core.", "numpy.lib.", "numpy.linalg", "numpy.random")
"""Start of the names of NumPy's modules that outputs are judged by."""
CONSTANTS = frozenset((float, int, str))
"""Types of constants that are compared by value."""
FUNCTIONS = (types.FunctionType, staticmethod, classmethod)
"""Types of functions of a class."""
SCALARS = (np.generic, bool, int, float, complex, str)
"""Scalar types, whose names in NumPy old code replaces."""
FOREIGN = "foreign "
"""Start of the names of functions that lie outside the library that they are found in."""
LIBRARIES = frozenset(("cupy", "cupy.cuda", "torch", "torch.nn.functional", "numba"))
"""Modules of which all functions are watched."""
LIMITS = ("eps", "max", "smallest_subnormal", "tiny")
"""Properties of a dtype that bounds of errors depend on."""
_SEEN: list[Any] = []
"""Objects whose numbers were noted last."""
LOOPS_AT = object.__basicsize__ + 4 * ctypes.sizeof(ctypes.c_int)
"""Place of the table of its loops in a function of NumPy, after four numbers."""
OWN = "its own"
"""A library's own function of Python, which it may replace by another one."""
IS_CPYTHON = sys.implementation.name == "cpython"
"""Whether a function in C begins with the address of its definition, whose second entry is the function's address."""
OPS, SHARED = "opgauge.ops.", "opgauge.ops._core."
"""Start of the names of the modules of ops and kernels, and of those whose code judges as well."""
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
    """Context of imports from a measured tree; raises TreeError if they replace code that times or judges.

    Handlers of signals are put back: with a timer they could compute between a call and the check of its outputs.
    """
    before, traced, handlers = code(), tracers(), signal_handlers()
    yield
    if changed_handlers(handlers, signal_handlers()):
        put_back_handlers(handlers)
    changed = changed_code(before, code()) or ("installed a tracer" if tracers() != traced else "")
    if changed:
        msg = f"importing its ops {changed}"
        raise TreeError(msg)


def _identity(value: Any) -> int:
    """Number of an object, which no other one gets before the next look at all code."""
    _SEEN.append(value)
    return id(value)


def _identities(values: tuple[Any, ...]) -> tuple[int, ...]:
    """Numbers of several objects, as of one."""
    _SEEN.append(values)
    return tuple(map(id, values))


def definitions() -> dict[str, Any]:
    """Dtypes, the registered ops and kernels, which judge outputs or are measured, and functions that they call."""
    registry: Any = sys.modules.get("opgauge.ops._core.registry")
    dtypes = getattr(sys.modules.get("opgauge.ops._core.dtype"), "DTYPES", {})
    found: dict[str, Any] = {f"dtype {name}": repr(info) for name, info in dtypes.items()}
    judging, used = set[str](), set[str]()
    for name, op in list(getattr(registry, "_OPS", {}).items()):
        owner = getattr(getattr(op.bound, "__self__", op), "__dict__", {}).items()
        found[f"op {name}"] = (*_fields(op), *((key, _identity(item)) for key, item in owner))
        judging |= {str(getattr(one, "__module__", "")) for one in (op.reference, op.bound, op.infer)}
    for key, kernel in list(getattr(registry, "_KERNELS", {}).items()):
        found[f"kernel {key}"] = (_identity(kernel), kernel.relaxed, *_fields(kernel))
        used.add(str(getattr(kernel.function, "__module__", "")))
    for name, module in list(sys.modules.items()):
        is_judge = name in judging or name.startswith(SHARED)
        if is_judge or name in used or name.startswith(OPS):
            for key, value in list(vars(module).items()):
                if key.startswith("__"):  # torch's compiler adds and removes functions
                    continue
                if is_judge or type(value) is types.FunctionType:
                    found[f"{name}.{key}"] = _member(value)
                if name.startswith(SHARED) and (fields := _fields(value)):
                    found[f"fields of {name}.{key}"] = fields
    return found


def _fields(definition: Any) -> tuple[int, ...]:
    """Identities of the fields of an op or a kernel."""
    kind: Any = type(definition)
    get = _getter(kind)
    return () if get is None else _identities(get(definition))


@cache
def _getter(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Function that returns all fields of an object; None for other classes than those of data."""
    names = tuple(getattr(kind, "__dataclass_fields__", ()))
    return attrgetter(*names) if len(names) > 1 else None


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
    found: dict[str, Any] = {}
    _SEEN.clear()
    for name, module in _used_modules().items():
        for key, value in list(vars(module).items()):
            # old code sets np.bool to bool: no check uses NumPy's scalar types by name
            is_scalar = name not in STANDARD and isinstance(value, type) and issubclass(value, SCALARS)
            if callable(value) and not is_scalar and "hook" not in key:
                found[f"{name}.{key}"] = _code_of(value)
                if isinstance(value, type) and name in STANDARD:
                    found |= _methods(f"{name}.{key}", value)
    found |= dict(_loops())
    for kind in (np.float16, np.float32, np.float64):
        limits = np.finfo(kind)
        found[f"limits of {kind.__name__}"] = tuple(float(getattr(limits, name)) for name in LIMITS)
    found |= device_code()
    for name, module in list(sys.modules.items()):
        if name.startswith(HARNESS) and isinstance(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    found |= _parts(f"{name}.{key}", value, name)
    return found


def _used_modules() -> dict[str, types.ModuleType]:
    """Modules by whose names the harness calls functions, and those that NumPy's functions consist of."""
    names = [name for name in list(sys.modules) if name in STANDARD or name == "numpy" or name.startswith(NUMPY)]
    found = {name: sys.modules.get(name) for name in names}
    return {name: module for name, module in found.items() if isinstance(module, types.ModuleType)}


def _code_of(value: Any) -> tuple[int, ...]:
    """A callable's identity and its code: the address of a function in C, or that of Python and its default values.

    NumPy wraps its functions in objects that call them.
    """
    function = getattr(value, "_implementation", value)
    if type(function) is types.BuiltinFunctionType and IS_CPYTHON:
        definition = ctypes.c_void_p.from_address(id(function) + object.__basicsize__).value or 0
        return _identity(value), ctypes.c_void_p.from_address(definition + ctypes.sizeof(ctypes.c_void_p)).value or 0
    if not isinstance(function, types.FunctionType):
        return (_identity(value),)
    return _identities((value, function.__code__, function.__defaults__, function.__kwdefaults__))


def _loops() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Addresses of the loops that functions of NumPy run, by dtypes: code in C can replace them."""
    for name, function in list(vars(np).items()) if IS_CPYTHON else ():
        if type(function) is np.ufunc:
            table = ctypes.c_void_p.from_address(id(function) + LOOPS_AT).value
            loops = (ctypes.c_size_t * function.ntypes).from_address(table) if table else ()
            yield f"loops of numpy.{name}", tuple(loops)


def _methods(name: str, kind: type) -> dict[str, Any]:
    """Functions of a class by name."""
    return {f"{name}.{key}": _code_of(one) for key, one in list(vars(kind).items()) if isinstance(one, FUNCTIONS)}


def device_code() -> dict[str, Any]:
    """Functions and methods of libraries by which outputs are read, calls timed and kernels run; parts of timers."""
    found: dict[str, Any] = {}
    for name in LIBRARIES & sys.modules.keys():
        for key, value in list(vars(sys.modules[name]).items()):
            if callable(value) and not (isinstance(value, type) and issubclass(value, SCALARS)):
                # torch's compiler replaces functions of torch by its own
                is_own = isinstance(value, types.FunctionType) and not _is_foreign(value, name)
                found[f"{name}.{key}"] = OWN if is_own else _identity(value)
    for owner, names in METHODS.items():
        watched = _find(owner)
        chosen = names or {key for kind in getattr(watched, "__mro__", ()) for key in vars(kind)}
        values = {f"{owner}.{key}": _raw(watched, key) for key in chosen if watched is not None}
        found |= {name: _identity(value) for name, value in values.items()}
        found |= {f"{FOREIGN}{name}": True for name, value in values.items() if _is_foreign(value, owner)}
    timer = _find(f"{HARNESS}measure.cuda.CudaTimer")
    for number, one in enumerate(getattr(timer, "made", ())):
        found |= {f"timer {number}'s {key}": _identity(value) for key, value in vars(one).items() if "torch" not in key}
    return found


def _is_foreign(value: Any, owner: str) -> bool:
    """Whether a function of Python lies outside the library that it is found in."""
    folder = f"/{owner.partition('.')[0]}/"
    return isinstance(value, types.FunctionType) and folder not in value.__code__.co_filename.replace("\\", "/")


def _raw(owner: Any, key: str) -> Any:
    """An attribute of a module, or of a class as it is stored there: not bound to the class."""
    return next((vars(kind)[key] for kind in getattr(owner, "__mro__", (owner,)) if key in vars(kind)), None)


def _find(name: str) -> Any:
    """An object of a loaded module by its full name; None without one."""
    module, _, key = name.rpartition(".")
    return sys.modules.get(name) or getattr(sys.modules.get(module), key, None)


METHODS: Mapping[str, tuple[str, ...]] = {
    "cupy.ndarray": (),
    "cupy.cuda.Event": (),
    "cupy.cuda.Stream": (),
    "cupy.cuda.MemoryHook": (),
    "torch": ("Tensor", "from_dlpack", "from_numpy", "empty"),
    "torch.Tensor": (),
    "numba.core.dispatcher.Dispatcher": (),
    "torch.cuda": (
        *("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "memory_stats"),
        *("synchronize", "empty_cache", "current_stream", "ExternalStream"),
    ),
    "cuda.core": ("Program", "ProgramOptions"),
}
"""Classes of which all methods are watched, or modules and classes of which some functions are."""


def _parts(name: str, value: Any, module: str) -> dict[str, Any]:
    """A function, constant, table, or methods and properties of a module, by name; new entries are new names."""
    match value:
        case types.FunctionType():
            return {name: (*_code_of(value), *map(_content, value.__closure__ or ()))}
        case float() | int() | str() | tuple():
            return {name: value}
        case dict():
            return {f"{name}[{key!r}]": _identity(item) for key, item in list(value.items()) if isinstance(key, str)}
        case type() if value.__module__ == module:
            return {f"{name}.{key}": _member(item) for key, item in list(vars(value).items())}
    return {name: _identity(value)} if callable(value) else {}


def _member(value: Any) -> Any:
    """A constant of a class or module, or what identifies a function or property; None of other members."""
    kind = type(value)
    if kind is types.FunctionType:
        return _identities((value, value.__code__, value.__defaults__))
    if kind in CONSTANTS:
        return value
    return _identity(value) if kind is tuple or hasattr(kind, "__get__") else None


def _content(cell: types.CellType) -> int:
    """Identity of the value of a variable that a function shares with the one around it; 0 without a value."""
    with suppress(ValueError):
        return _identity(cell.cell_contents)
    return 0


def changed_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names of functions, ops or kernels that differ; new ones may be imported or registered."""
    names = [name for name, value in old.items() if new.get(name) != value]
    names += [name.removeprefix(FOREIGN) for name in new.keys() - old.keys() if name.startswith(FOREIGN)]
    return f"replaced {', '.join(dict.fromkeys(names[:3]))}" if names else ""
