"""The registry of ops and kernels: filled at import, then read-only.

`ops/__init__.py` calls `discover()`, which imports every folder of `ops` that does not
begin with an underscore; each folder's `__init__` imports the files that register.
Kernels are found by exact key. A second registration under a key raises and names both.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.errors import DuplicateError, KernelNotFoundError, OpNotFoundError
from opgauge.ops._core.kernel import Kernel, KernelKey
from opgauge.ops._core.op import Op, Params, Shapes
from opgauge.ops._core.params import with_checked_numbers
from opgauge.ops._core.source import source_line

_OPS: dict[str, Op] = {}
_KERNELS: dict[KernelKey, Kernel] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def register(op: Op) -> Op:
    """Register `op`; raises DuplicateError if the name is taken.

    The shape rule of the result also refuses parameters that the dtype cannot represent.
    """
    if op.name in _OPS:
        msg = f"op {op.name!r} is registered twice"
        raise DuplicateError(msg)
    op = _OPS[op.name] = replace(op, infer=with_checked_numbers(op.infer))
    return op


def kernel(
    op: str,
    implementation: str,
    backends: str | Iterable[str],
    dtypes: Iterable[str],
    *,
    prepare: bool = False,
    arrays: str = "numpy",
    workspace: Callable[[Shapes, Params], int] | None = None,
    strided: bool = False,
    deterministic: bool = True,
    relaxed: float = 1.0,
    note: str = "",
    experimental: bool = False,
    captures_inputs: bool = False,
) -> Callable[[Function], Function]:
    """Register the decorated function once per backend and dtype; see Kernel for the options.

    Raises DuplicateError, naming both functions, when a key is taken.
    """
    names = (backends,) if isinstance(backends, str) else tuple(backends)

    def decorate(function: Function) -> Function:
        path = source_line(function).file
        for backend in names:
            for dtype in dtypes:
                key = KernelKey(op, implementation, backend, dtype_info(dtype).name)
                register_kernel(
                    Kernel(
                        key,
                        function,
                        prepare,
                        arrays,
                        workspace,
                        strided,
                        deterministic,
                        relaxed,
                        note,
                        experimental,
                        path,
                        captures_inputs,
                    )
                )
        return function

    return decorate


def register_kernel(kernel: Kernel) -> None:
    """Register `kernel`; raises DuplicateError, naming both places, when its key is taken."""
    taken = _KERNELS.get(kernel.key)
    if taken is not None:
        places = [source_line(inspect.unwrap(one.function)) for one in (taken, kernel)]
        msg = f"kernel {kernel.key} is claimed twice: at {places[0]} and at {places[1]}"
        raise DuplicateError(msg)
    _KERNELS[kernel.key] = kernel


def find_op(name: str) -> Op:
    """The op called `name`; raises OpNotFoundError with the nearest name."""
    try:
        return _OPS[name]
    except KeyError:
        near = get_close_matches(name, _OPS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(_OPS))}"
        msg = f"no op {name!r}{hint}"
        raise OpNotFoundError(msg) from None


class Found(NamedTuple):
    """A kernel, and whether it is the CPU's in place of the requested one."""

    kernel: Kernel
    fell_back: bool


def find_kernel(op: str, implementation: str, backend: str, dtype: str) -> Kernel:
    """The kernel under exactly this key; raises KernelNotFoundError listing the existing keys."""
    try:
        return _KERNELS[op, implementation, backend, dtype]  # type: ignore[index]
    except KeyError:
        raise _missing(op, implementation, backend, dtype) from None


def default_implementation(op: str) -> str:
    """`optimized`, or the only implementation of an op without it; raises KernelNotFoundError if there are several."""
    find_op(op)
    names = sorted({key.implementation for key in _KERNELS if key.op == op})
    if "optimized" in names or not names:
        return "optimized"
    if len(names) > 1:
        msg = f"{op} has several implementations: choose one by implementation=, of {', '.join(names)}"
        raise KernelNotFoundError(msg)
    return names[0]


def find_kernel_or_cpu(op: str, implementation: str, backend: str, dtype: str) -> Found:
    """Like find_kernel, but the CPU's kernel stands in for a missing one, and the result says so."""
    key = KernelKey(op, implementation, backend, dtype)
    exact = _KERNELS.get(key)
    if exact is not None:
        return Found(exact, fell_back=False)
    return Found(find_kernel(op, implementation, "cpu", dtype), fell_back=backend != "cpu")


def all_ops() -> tuple[Op, ...]:
    """Every op, by name."""
    return tuple(_OPS[name] for name in sorted(_OPS))


def kernels(
    *,
    op: str | None = None,
    implementation: str | None = None,
    backend: str | None = None,
    dtype: str | None = None,
) -> tuple[Kernel, ...]:
    """Every kernel whose key has the given parts, in order of key."""
    wanted = (op, implementation, backend, dtype)
    return tuple(
        _KERNELS[key]
        for key in sorted(_KERNELS)
        if all(part is None or part == have for part, have in zip(wanted, key, strict=True))
    )


def torch_installed() -> bool:
    """Whether torch can be imported, so that peer files may register; it is not imported here."""
    return find_spec("torch") is not None


def discover() -> None:
    """Import every op's folder, so that its ops and kernels register."""
    package = importlib.import_module("opgauge.ops")
    for folder in sorted(Path(package.__path__[0]).iterdir()):
        if folder.name.startswith(("_", ".")) or not (folder / "__init__.py").is_file():
            continue
        importlib.import_module(f"opgauge.ops.{folder.name}")


def _missing(op: str, implementation: str, backend: str, dtype: str) -> KernelNotFoundError:
    find_op(op)
    have = [str(key) for key in sorted(_KERNELS) if key.op == op]
    asked = KernelKey(op, implementation, backend, dtype)
    return KernelNotFoundError(f"no kernel {asked}; registered for {op}: {', '.join(have) or 'none'}")
