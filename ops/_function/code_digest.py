"""A digest of the code that a reference reaches, by which two revisions of a project tell whether it changed."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
"""Types whose `repr` is their value."""
WRAPPING = ("__wrapped__", "py_func", "reference")
"""Attributes of callables that lead to the function inside: of `functools`, Numba and `opgauge.op`."""
INSTALLED = "site-packages"
"""Folder of installed packages, which are the same for all revisions."""


def code_digest(*roots: Any) -> str:
    """Digest of functions, of what they call in the project, and of the constants that they read."""
    total = sha256()
    for part in _Reader().parts(roots):
        total.update(part.encode() + b"\0")
    return total.hexdigest()


class _Reader:
    """Reads each object once. Text of comments, docstrings and line numbers is not part of the code."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def parts(self, thing: Any) -> Iterator[str]:
        """Text of an object, and of the objects that it leads to."""
        if isinstance(thing, PLAIN):
            yield repr(thing)
        elif id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            yield type(thing).__name__
            for one in _inner(thing):
                yield from self.parts(one)


def _inner(thing: Any) -> Iterable[Any]:
    """Objects that an object consists of or leads to."""
    if isinstance(thing, FunctionType) and _is_own(thing.__code__.co_filename):
        return _of_function(thing)
    if isinstance(thing, Mapping):
        return [one for pair in thing.items() for one in pair]
    for kind, read in READERS.items():
        if isinstance(thing, kind):
            return read(thing)
    return _of_object(thing)


READERS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    (tuple, list): iter,
    (set, frozenset): lambda thing: sorted(map(repr, thing)),
    (np.ndarray, np.generic): lambda thing: (str(thing.dtype), thing.shape, thing.tobytes()),
    partial: lambda thing: (thing.func, thing.args, thing.keywords),
    MethodType: lambda thing: (thing.__func__, thing.__self__),
    (staticmethod, classmethod): lambda thing: (thing.__func__,),
    property: lambda thing: (thing.fget,),
    CodeType: lambda thing: (
        thing.co_code,
        thing.co_names,
        thing.co_varnames,
        thing.co_exceptiontable,
        thing.co_consts,
    ),
}
"""Parts of objects, by type."""


def _of_function(function: FunctionType) -> Iterator[Any]:
    code = function.__code__
    yield code.replace(co_consts=tuple(one for one in code.co_consts if one != function.__doc__))
    yield from (function.__defaults__, function.__kwdefaults__)
    yield from _enclosed(function)
    names = list(_names(code))
    modules = [sys.modules[name] for name in names if name in sys.modules]
    for name in names:
        found = function.__globals__.get(name)
        yield found if not isinstance(found, ModuleType) else found.__name__
        modules += [found] if isinstance(found, ModuleType) else []
    for module in modules:  # grows: a package leads to its modules
        if _is_own(getattr(module, "__file__", None) or ""):
            inner = [vars(module)[name] for name in names if name in vars(module)]
            yield from (one for one in inner if not isinstance(one, ModuleType))
            modules += [one for one in inner if isinstance(one, ModuleType) and one not in modules]


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a cell that nothing was assigned to
            yield cell.cell_contents


def _of_object(thing: Any) -> Iterator[Any]:
    """Inner parts of a class, an instance or a callable of compiled code."""
    yield getattr(thing, "__qualname__", type(thing).__qualname__)
    held = vars(thing) if hasattr(thing, "__dict__") else {}
    kind = thing if isinstance(thing, type) else type(thing)
    if _is_own(getattr(sys.modules.get(kind.__module__), "__file__", None) or ""):
        yield from (value for name, value in sorted(held.items()) if not name.startswith("__") or callable(value))
        yield from kind.__mro__
    yield from (held[name] for name in WRAPPING if name in held)


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes that a function uses, those of functions inside it too."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _is_own(file: str) -> bool:
    """Whether a source file is neither installed, nor of Python, nor of opgauge."""
    path = Path(file)
    outside = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[2]))
    return path.is_absolute() and INSTALLED not in path.parts and not any(path.is_relative_to(one) for one in outside)
