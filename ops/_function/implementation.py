"""Adapter from a user's function to a kernel: arrays converted, outputs returned or filled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from opgauge.ops._core.backend import address_of
from opgauge.ops._core.errors import DefinitionError
from opgauge.ops._core.op import Op

Function = Callable[..., Any]
CPU_ARRAYS = ("numpy", "torch", "jax")
CUDA_ARRAYS = ("cupy", "torch", "jax", "numba")
"""Array types of implementations, by backend."""
INTERFACES = ("data_ptr", "__array_interface__", "__cuda_array_interface__")
"""Attributes of objects that are arrays in memory."""


class Implementation:
    """A function that computes an op, and its calling convention.

    function: takes inputs and parameters by name. arrays: type of its arrays, None for the device's own. inplace: the
    input that it overwrites, by output. is_prepared: it returns the callable that computes.
    """

    def __init__(
        self,
        op: Op,
        name: str,
        function: Function,
        arrays: str | None,
        inplace: Mapping[str, str],
        *,
        is_prepared: bool,
    ) -> None:
        self.label = f"implementation {name!r} of {op.name}"
        self.op, self.arrays, self.inplace, self.is_prepared = op, arrays, inplace, is_prepared
        self._given = function
        takes_names = not _is_ufunc(function) and _has_signature(function)
        self.function = function if takes_names else _by_name(function, op, self.label)
        self._accepted = inspect.signature(self.function).parameters
        self._takes_any = any(item.kind is item.VAR_KEYWORD for item in self._accepted.values())
        self._check()

    def kernel(self, device: str) -> Function:
        """The registered function: given inputs, parameters and `out` by keyword, it returns the timed callable.

        Raises DefinitionError if the arrays are not of the device.
        """
        known = CPU_ARRAYS if device == "cpu" else CUDA_ARRAYS
        arrays = self.arrays or known[0]
        if arrays not in known:
            msg = f"{self.label}: arrays={arrays!r} is not for {device}; choose {', '.join(known)}"
            raise DefinitionError(msg)

        def bind(*, out: Mapping[str, Any], **arguments: Any) -> Function:
            return self._bound(arguments, out, arrays)

        bind.__wrapped__ = self._given  # type: ignore[attr-defined]
        return bind

    def _check(self) -> None:
        """Raise DefinitionError for a signature that does not match the op."""
        params = list(getattr(self.op.params, "__dataclass_fields__", {}))
        wanted = [item.name for item in self.op.inputs] + params
        missing = [name for name in wanted if not self._takes(name)]
        if missing:
            msg = f"{self.label} does not take {', '.join(missing)}, which it would get by name"
            raise DefinitionError(msg)
        known = {*wanted, "out", "stream"}
        demanded = [
            name
            for name, item in self._accepted.items()
            if name not in known
            and item.default is item.empty
            and item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)
        ]
        if demanded:
            msg = f"{self.label} requires {', '.join(demanded)}, which {self.op.name} does not have"
            raise DefinitionError(msg)
        names = {item.name for item in self.op.inputs}
        for output, source in self.inplace.items():
            if output not in self.op.outputs or source not in names:
                msg = f"{self.label}: inplace= should give an input of {self.op.name} by output, not {source!r}"
                raise DefinitionError(msg)
        others = [name for name in self.op.outputs if name not in self.inplace]
        if self.inplace and others and "out" not in self._accepted:
            msg = f"{self.label} overwrites inputs, so it should take out and fill {', '.join(others)}"
            raise DefinitionError(msg)

    def _takes(self, name: str) -> bool:
        item = self._accepted.get(name)
        return self._takes_any if item is None else item.kind is not item.POSITIONAL_ONLY

    def _bound(self, arguments: dict[str, Any], out: Mapping[str, Any], arrays: str) -> Function:
        given = {item.name: arguments.get(item.name) for item in self.op.inputs}
        rest = {name: value for name, value in arguments.items() if name not in given}
        copies = [(out[output], given[source]) for output, source in self.inplace.items()]
        given |= {source: out[output] for output, source in self.inplace.items()}
        convert = CONVERTERS[arrays]
        call = {name: None if value is None else convert(value) for name, value in given.items()} | rest
        if "out" in self._accepted:
            filled = tuple(convert(value) for value in out.values())
            call["out"] = filled[0] if len(filled) == 1 else filled
        if "stream" in self._accepted:
            call["stream"] = _stream(next(iter(out.values()), None), arrays)
        run = self.function(**call) if self.is_prepared else None
        if self.is_prepared and not callable(run):
            msg = f"{self.label} has prepare=True and returned no callable but {type(run).__name__}"
            raise DefinitionError(msg)
        return self._runner(run, call, out, copies, arrays)

    def _runner(
        self, run: Function | None, call: Mapping[str, Any], out: Mapping[str, Any], copies: list[Any], arrays: str
    ) -> Function:
        """The callable of one sample."""
        function, names = self.function, tuple(out)
        filled = out if "out" in self._accepted else {name: out[name] for name in self.inplace}
        is_new, label = bool(filled), self.label
        finish = import_module("jax").block_until_ready if arrays == "jax" else None
        begin = _waiting(next(iter(out.values()), None)) if arrays == "jax" else None

        def once() -> Any:
            nonlocal is_new
            for target, source in copies:
                target[...] = source
            if begin is not None:
                begin()
            returned = function(**call) if run is None else run()
            if filled:
                if is_new:
                    is_new = False
                    _check_filled(returned, filled, label)
                return None
            if finish is not None:
                finish(returned)
            return _as_tuple(returned, names, label)

        return once


def _is_ufunc(function: Function) -> bool:
    """Whether a function is a ufunc of NumPy, Numba or CuPy, whose inputs have positions and no names."""
    return all(hasattr(function, name) for name in ("nin", "nout"))


def _has_signature(function: Function) -> bool:
    """Whether the names of a function's arguments are known: not those of pybind11, nanobind, cffi and ctypes."""
    try:
        inspect.signature(function)
    except ValueError:
        return False
    return True


def _by_name(function: Any, op: Op, label: str) -> Function:
    """A function that takes positions, by name: the op's inputs, then its parameters.

    Raises DefinitionError for a ufunc that takes others.
    """
    inputs = tuple(item.name for item in op.inputs)
    params = tuple(getattr(op.params, "__dataclass_fields__", {}))
    if _is_ufunc(function) and (params or function.nin != len(inputs)):
        msg = f"{label} is a ufunc of {function.nin} arrays, {op.name} takes {', '.join(inputs + params)}: wrap it"
        raise DefinitionError(msg)

    def call(**given: Any) -> Any:
        return function(*(given[name] for name in inputs + params))

    return call


def _check_filled(returned: Any, filled: Mapping[str, Any], label: str) -> None:
    """Raise DefinitionError if a function that should fill arrays returned another one in place of the only one."""
    ((name, array), *others) = filled.items()
    is_array = any(hasattr(returned, key) for key in INTERFACES) and getattr(returned, "shape", None) == array.shape
    if is_array and not others and address_of(returned) != address_of(array):
        msg = f"{label} returned a new array, but {name} should be filled: write to it, or take no out"
        raise DefinitionError(msg)


def _as_tuple(returned: Any, names: tuple[str, ...], label: str) -> tuple[Any, ...]:
    if type(returned) is tuple:
        return returned
    if returned is None:
        msg = f"{label} returned None; it should return the output, or take `out` and fill it"
        raise DefinitionError(msg)
    if isinstance(returned, Mapping):
        if absent := [name for name in names if name not in returned]:
            msg = f"{label} returned a mapping without {', '.join(absent)}; it has {', '.join(map(str, returned))}"
            raise DefinitionError(msg)
        return tuple(returned[name] for name in names)
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def _same(array: Any) -> Any:
    return array


def _to_jax(array: Any) -> Any:
    """An array of JAX: on the same memory if DLPack takes its dtype, otherwise a copy of one on the CPU."""
    try:
        return import_module("jax.dlpack").from_dlpack(array)
    except BufferError:  # NumPy's, for bfloat16
        return import_module("jax").numpy.asarray(array)


def _to_numba(array: Any) -> Any:
    return import_module("numba.cuda").as_cuda_array(array)


CONVERTERS: dict[str, Function] = {
    "numpy": _same,
    "cupy": _same,
    "torch": _same,  # converted where buffers are allocated
    "jax": _to_jax,
    "numba": _to_numba,
}
"""Conversion of the harness' arrays, by array type."""


def _waiting(array: Any) -> Function | None:
    """A function that waits for the current CUDA stream; None on the CPU.

    JAX runs on streams of its own, which would begin before the timed one.
    """
    if not hasattr(array, "__cuda_array_interface__"):
        return None
    stream: Function = import_module("cupy").cuda.get_current_stream().synchronize
    return stream


def _stream(array: Any, arrays: str) -> int:
    """Handle of the current CUDA stream; 0 on the CPU."""
    if array is None or not (hasattr(array, "__cuda_array_interface__") or getattr(array, "is_cuda", False)):
        return 0
    if arrays == "torch":
        return int(import_module("torch").cuda.current_stream().cuda_stream)
    return int(import_module("cupy").cuda.get_current_stream().ptr)
