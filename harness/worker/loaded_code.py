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
from opgauge.harness.worker.inspection import Inspection
from opgauge.harness.worker.rounding import put_back_rounding
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
_CODE, _TABLES, _DEFINITIONS = list[Inspection](), list[Inspection](), list[Inspection]()
"""The last inspections; lists, since an inspection does not read those."""
FUNCTION, WORD = attrgetter("__code__", "__defaults__", "__kwdefaults__"), attrgetter("value")
"""Parts of a function that decide what it does, and the number in a place of memory."""
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
    return (*tracers(), *map(id, (sys.excepthook, sys.unraisablehook, threading.excepthook)), *tools)


def tracers() -> tuple[int, ...]:
    """Functions that the interpreter calls with each call or line."""
    return tuple(map(id, (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())))


@contextmanager
def keeping_code() -> Iterator[None]:
    """Context of imports from a measured tree; raises TreeError if they replace code that times or judges.

    Handlers of signals are put back: with a timer they could compute between a call and the check of its outputs. So is
    the rounding: libraries that GCC links with `-ffast-math` flush subnormal numbers to zero as they are loaded.
    """
    before, known, traced, handlers = code(), tables(), tracers(), signal_handlers()
    yield
    if changed_handlers(handlers, signal_handlers()):
        put_back_handlers(handlers)
    put_back_rounding()
    changed = changed_code(before, code()) or changed_code(known, tables())
    changed = changed or ("installed a tracer" if tracers() != traced else "")
    if changed:
        msg = f"importing its ops {changed}"
        raise TreeError(msg)


def definitions() -> Inspection:
    """Dtypes, the registered ops and kernels, which judge outputs or are measured, and functions that they call."""
    _DEFINITIONS[:] = [_DEFINITIONS[0].repeated() if _DEFINITIONS else Inspection(_definitions)]
    return _DEFINITIONS[0]


def _definitions(look: Inspection) -> dict[str, Any]:
    registry: Any = sys.modules.get("opgauge.ops._core.registry")
    dtypes = getattr(sys.modules.get("opgauge.ops._core.dtype"), "DTYPES", {})
    found: dict[str, Any] = {f"dtype {name}": look.value(repr, info) for name, info in look.entries(dtypes)}
    judging, used = set[str](), set[str]()
    for name, op in look.entries(getattr(registry, "_OPS", {})):
        owner = look.entries(getattr(getattr(op.bound, "__self__", op), "__dict__", {}))
        found[f"op {name}"] = (*_fields(look, op), *((key, id(item)) for key, item in owner))
        judging |= {str(getattr(one, "__module__", "")) for one in (op.reference, op.bound, op.infer)}
    for key, kernel in look.entries(getattr(registry, "_KERNELS", {})):
        found[f"kernel {key}"] = (id(kernel), kernel.relaxed, *_fields(look, kernel))
        used.add(str(getattr(kernel.function, "__module__", "")))
    for name, module in look.entries(sys.modules):
        is_judge = name in judging or name.startswith(SHARED)
        if is_judge or name in used or name.startswith(OPS):
            for key, value in look.entries(vars(module)):
                if key.startswith("__"):  # torch's compiler adds and removes functions
                    continue
                if is_judge or type(value) is types.FunctionType:
                    found[f"{name}.{key}"] = _member(look, value)
                if name.startswith(SHARED) and (fields := _fields(look, value)):
                    found[f"fields of {name}.{key}"] = fields
    return found


def _fields(look: Inspection, definition: Any) -> tuple[int, ...]:
    """Identities of the fields of an op or a kernel."""
    kind: Any = type(definition)
    get = _getter(kind)
    return () if get is None else tuple(map(id, look.parts(get, definition)))


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


def code() -> Inspection:
    """Functions of the harness, of clocks and of the checks: name, object and code."""
    _CODE[:] = [_CODE[0].repeated() if _CODE else Inspection(_code)]
    return _CODE[0]


def tables() -> Inspection:
    """Entries of the harness's tables that have a text as their key. `code` has been called before, and finds these."""
    given = [look for look in _TABLES if look.tables is _CODE[0].tables]
    _TABLES[:] = [given[0].repeated() if given else Inspection(_tables)]
    return _TABLES[0]


def _tables(look: Inspection) -> dict[str, Any]:
    look.tables = _CODE[0].tables
    entries = ((name, *entry) for name, table in look.tables.items() for entry in look.entries(table))
    return {f"{name}[{key!r}]": id(item) for name, key, item in entries if isinstance(key, str)}


def _code(look: Inspection) -> dict[str, Any]:
    modules = {name: one for name, one in look.entries(sys.modules) if isinstance(one, types.ModuleType)}
    found = _library_code(look, modules) | dict(_loops(look))
    for kind in (np.float16, np.float32, np.float64):
        found[f"limits of {kind.__name__}"] = look.value(_limits, kind)
    found |= _device_code(look)
    for name, module in modules.items():
        if name.startswith(HARNESS):
            for key, value in look.entries(vars(module)):
                if not key.startswith("__"):
                    found |= _parts(look, f"{name}.{key}", value, name)
    return found


def _library_code(look: Inspection, modules: Mapping[str, types.ModuleType]) -> dict[str, Any]:
    """Functions of modules by whose names the harness calls them, and those that NumPy's functions consist of."""
    found: dict[str, Any] = {}
    for name, module in modules.items():
        if name in STANDARD or name == "numpy" or name.startswith(NUMPY):
            for key, value in look.entries(vars(module)):
                # old code sets np.bool to bool: no check uses NumPy's scalar types by name
                is_scalar = name not in STANDARD and isinstance(value, type) and issubclass(value, SCALARS)
                if callable(value) and not is_scalar and "hook" not in key:
                    found[f"{name}.{key}"] = _code_of(look, value)
                    if isinstance(value, type) and name in STANDARD:
                        found |= _methods(look, f"{name}.{key}", value)
    return found


def _limits(kind: type) -> tuple[float, ...]:
    limits = np.finfo(kind)
    return tuple(float(getattr(limits, name)) for name in LIMITS)


def _code_of(look: Inspection, value: Any) -> tuple[int, ...]:
    """A callable's identity and its code: the address of a function in C, or that of Python and its default values.

    NumPy wraps its functions in objects that call them.
    """
    function = getattr(value, "_implementation", value)
    if type(function) is types.BuiltinFunctionType and IS_CPYTHON:
        definition = _word(look, id(function) + object.__basicsize__)
        return id(value), _word(look, definition + ctypes.sizeof(ctypes.c_void_p))
    if not isinstance(function, types.FunctionType):
        return (id(value),)
    return (id(value), *map(id, look.parts(FUNCTION, function)))


def _word(look: Inspection, address: int) -> int:
    """The address that lies at another one."""
    return int(look.value(WORD, ctypes.c_size_t.from_address(address)))


def _loops(look: Inspection) -> Iterator[tuple[str, bytes]]:
    """Addresses of the loops that functions of NumPy run, by dtypes: code in C can replace them."""
    for name, function in look.entries(vars(np)) if IS_CPYTHON else ():
        if type(function) is np.ufunc:
            table = _word(look, id(function) + LOOPS_AT)
            loops = (ctypes.c_size_t * function.ntypes).from_address(table) if table else b""
            yield f"loops of numpy.{name}", look.value(bytes, loops)


def _methods(look: Inspection, name: str, kind: type) -> dict[str, Any]:
    """Functions of a class by name."""
    functions = [(key, one) for key, one in look.entries(vars(kind)) if isinstance(one, FUNCTIONS)]
    return {f"{name}.{key}": _code_of(look, one) for key, one in functions}


def _device_code(look: Inspection) -> dict[str, Any]:
    """Functions and methods of libraries by which outputs are read, calls timed and kernels run; parts of timers."""
    found: dict[str, Any] = {}
    for name in LIBRARIES & sys.modules.keys():
        for key, value in look.entries(vars(sys.modules[name])):
            if callable(value) and not (isinstance(value, type) and issubclass(value, SCALARS)):
                # torch's compiler replaces functions of torch by its own
                is_own = isinstance(value, types.FunctionType) and not _is_foreign(look, value, name)
                found[f"{name}.{key}"] = OWN if is_own else id(value)
    for owner, names in METHODS.items():
        watched = _find(look, owner)
        if watched is None:
            continue
        kinds = [dict(look.entries(vars(kind))) for kind in getattr(watched, "__mro__", (watched,))]
        for key in names or {key for kind in kinds for key in kind}:
            value = next((kind[key] for kind in kinds if key in kind), None)  # as stored, not bound to the class
            found[f"{owner}.{key}"] = id(value)
            if _is_foreign(look, value, owner):
                found[f"{FOREIGN}{owner}.{key}"] = True
    timer = _find(look, f"{HARNESS}measure.cuda.CudaTimer")
    for number, one in enumerate(look.parts(tuple, getattr(timer, "made", ()))):
        parts = look.entries(vars(one))
        found |= {f"timer {number}'s {key}": id(value) for key, value in parts if "torch" not in key}
    return found


def _is_foreign(look: Inspection, value: Any, owner: str) -> bool:
    """Whether a function of Python lies outside the library that it is found in."""
    folder = f"/{owner.partition('.')[0]}/"
    return isinstance(value, types.FunctionType) and folder not in look.parts(FUNCTION, value)[0].co_filename.replace(
        "\\", "/"
    )


def _find(look: Inspection, name: str) -> Any:
    """An object of a loaded module by its full name; None without one."""
    module, _, key = name.rpartition(".")
    if name in sys.modules:
        return sys.modules[name]
    return dict(look.entries(vars(sys.modules[module]))).get(key) if module in sys.modules else None


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


def _parts(look: Inspection, name: str, value: Any, module: str) -> dict[str, Any]:
    """A function, constant, table, or methods and properties of a module, by name; new entries are new names."""
    match value:
        case types.FunctionType():
            shared = [id(one) for cell in value.__closure__ or () for one in look.parts(_contents, cell)]
            return {name: (*_code_of(look, value), *shared)}
        case float() | int() | str() | tuple():
            return {name: value}
        case dict():
            look.tables[name] = value
            return {name: id(value)}
        case type() if value.__module__ == module:
            return {f"{name}.{key}": _member(look, item) for key, item in look.entries(vars(value))}
    return {name: id(value)} if callable(value) else {}


def _member(look: Inspection, value: Any) -> Any:
    """A constant of a class or module, or what identifies a function or property; None of other members."""
    kind = type(value)
    if kind is types.FunctionType:
        return _code_of(look, value)
    if kind in CONSTANTS:
        return value
    return id(value) if kind is tuple or hasattr(kind, "__get__") else None


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """The value of a variable that a function shares with the one around it; empty without a value."""
    with suppress(ValueError):
        return (cell.cell_contents,)
    return ()


def changed_code(old: Inspection, new: Inspection) -> str:
    """Names of functions, ops or kernels that differ; new ones may be imported or registered."""
    names = [name for name, value in old.found.items() if new.found.get(name) != value]
    strange = [name for name in new.found.keys() - old.found.keys() if name.startswith(FOREIGN)]
    names += [name.removeprefix(FOREIGN) for name in strange]
    return f"replaced {', '.join(dict.fromkeys(names[:3]))}" if names else ""
