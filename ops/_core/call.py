"""`call`: run an op on arrays of the caller, with every argument checked.

Kernels trust what they are bound to: buffers of the op's shapes and dtypes, C-contiguous and on one device. `call`
establishes that for arrays of NumPy, CuPy or torch, and raises an OpError where it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import numpy as np
from opgauge.ops._core.backend import cupy, empty, to_torch
from opgauge.ops._core.dtype import dtype_info, dtype_name
from opgauge.ops._core.errors import BackendError, DtypeError, ParameterError, ShapeError
from opgauge.ops._core.kernel import Kernel
from opgauge.ops._core.op import Op, Shapes, TensorSpec
from opgauge.ops._core.registry import find_kernel, find_op


@dataclass(frozen=True, slots=True)
class Place:
    """Where arrays are: the library they belong to (numpy, cupy or torch), the backend and the number of its device."""

    library: str
    backend: str
    index: int = 0


def call(name: str, *, implementation: str = "optimized", out: Any = None, **arguments: Any) -> Any:
    """Run the op `name` on NumPy, CuPy or torch arrays and return its outputs in the same library.

    arguments: the op's inputs (arrays) and parameters by name. A parameter that may be a tensor is an input if an array
        is given for it.
    out: where to write: an array, or for several outputs a dict of arrays by name; None allocates.

    Returns the output, or a dict by name where there are several. Inputs that are not contiguous are copied unless the
    kernel takes them. An `out` that shares memory with an input, or is not contiguous, is written by a copy at the end.
    On CUDA the kernel is enqueued on the caller's current stream, of torch or CuPy; nothing waits for it.

    Raises OpNotFoundError, KernelNotFoundError, and for arguments that do not fit the op or each other ShapeError,
    DtypeError, ParameterError or BackendError.
    """
    op = find_op(name)
    inputs, params = _split(op, arguments)
    place = _common_place(inputs)
    with _current(place):
        arrays = {key: _adopted(key, value, place) for key, value in inputs.items()}
        dtype = _dtype_of(op, arrays)
        shapes = op.infer({key: tuple(array.shape) for key, array in arrays.items()}, dtype, params)
        _check_inputs(op, arrays, shapes)
        kernel = find_kernel(name, implementation, place.backend, dtype)
        if not kernel.strided:
            arrays = {key: _contiguous(array) for key, array in arrays.items()}
        given = _check_outputs(shapes, out, place)
        buffers = {
            key: _buffer(spec, given.get(key), arrays, place)
            for key, spec in shapes.outputs.items()
            if spec.view_of is None
        }
        returned = _run(kernel, arrays, params, buffers, shapes, place)
        found = {key: returned.get(key, buffers.get(key)) for key in shapes.outputs}
        for key, target in given.items():
            adopted = _adopted(key, target, place)
            if found[key] is not adopted and not _same_memory(found[key], adopted):
                adopted[...] = found[key]
        results = {key: given[key] if key in given else _returned(value, place) for key, value in found.items()}
    return next(iter(results.values())) if len(results) == 1 else results


def _split(op: Op, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Arrays by input name, and the op's parameters; raises ParameterError for names that the op does not have."""
    inputs, params = {}, {}
    input_names = {item.name for item in op.inputs}
    param_names = {item.name for item in fields(op.params)}
    for key, value in arguments.items():
        if key in input_names and _is_array(value):
            inputs[key] = value
        elif key in param_names:
            params[key] = _plain(value)
        elif key in input_names:
            msg = f"{op.name}: {key} is an input and takes an array, not {type(value).__name__}"
            raise ParameterError(msg)
        else:
            known = sorted(input_names | param_names)
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            msg = f"{op.name} has no {key!r}; {hint}"
            raise ParameterError(msg)
    missing = [item.name for item in op.inputs if item.required and item.name not in inputs]
    if missing:
        msg = f"{op.name} needs {', '.join(missing)}"
        raise ParameterError(msg)
    return inputs, op.params(**params)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic)


def _plain(value: Any) -> Any:
    """A parameter as the op takes it: NumPy's numbers as Python's, lists as tuples."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value


def _place_of(value: Any) -> Place:
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        device = value.device
        if device.type not in {"cpu", "cuda"}:
            msg = f"a torch tensor on {device}: only cpu and cuda are supported"
            raise BackendError(msg)
        return Place("torch", device.type, device.index or 0)
    if library == "cupy":
        return Place("cupy", "cuda", int(value.device.id))
    if isinstance(value, np.ndarray):
        return Place("numpy", "cpu")
    msg = f"{type(value).__name__} is no array of NumPy, CuPy or torch"
    raise BackendError(msg)


def _common_place(inputs: Mapping[str, Any]) -> Place:
    places = {key: _place_of(value) for key, value in inputs.items()}
    if len(set(places.values())) > 1:
        where = ", ".join(f"{key} ({place.library}, {place.backend}:{place.index})" for key, place in places.items())
        msg = f"arrays of different libraries or devices: {where}"
        raise BackendError(msg)
    return next(iter(places.values()))


@contextmanager
def _current(place: Place) -> Iterator[None]:
    """CuPy's current device and stream are the caller's meanwhile."""
    if place.backend == "cpu":
        yield
        return
    cuda = cupy().cuda
    with cuda.Device(place.index):
        if place.library != "torch":
            yield
            return
        stream = import_module("torch").cuda.current_stream(place.index).cuda_stream
        with cuda.ExternalStream(stream, place.index):
            yield


def _adopted(name: str, value: Any, place: Place) -> Any:
    """A NumPy or CuPy array on the same memory; raises DtypeError for dtypes that are not ours."""
    if _place_of(value) != place:
        msg = f"{name} is not where the other arrays are: {place.library} on {place.backend}:{place.index}"
        raise BackendError(msg)
    if place.library != "torch":
        if not value.dtype.isnative:
            msg = f"{name} is of foreign byte order: {value.dtype}"
            raise DtypeError(msg)
        return value
    torch = import_module("torch")
    tensor = value.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    halves = tensor.dtype == torch.bfloat16
    source = tensor.view(torch.int16) if halves else tensor
    array = source.numpy() if place.backend == "cpu" else cupy().from_dlpack(source)
    return array.view(dtype_info("bfloat16").numpy) if halves else array


def _dtype_of(op: Op, arrays: Mapping[str, Any]) -> str:
    first = next(item.name for item in op.inputs if item.name in arrays)
    try:
        dtype = dtype_name(arrays[first].dtype)
    except TypeError as error:  # NumPy's, for what is no dtype of it, or our DtypeError
        msg = f"{op.name}: {first} has the dtype {arrays[first].dtype}"
        raise DtypeError(msg) from error
    if dtype not in op.dtypes:
        msg = f"{op.name} takes {', '.join(op.dtypes)}; {first} is {dtype}"
        raise DtypeError(msg)
    return dtype


def _check_inputs(op: Op, arrays: Mapping[str, Any], shapes: Shapes) -> None:
    for key, spec in shapes.inputs.items():
        if key not in arrays:
            msg = f"{op.name} needs {key}: {spec.dtype}{list(spec.shape)}"
            raise ParameterError(msg)
        _check(key, arrays[key], spec)


def _check(name: str, array: Any, spec: TensorSpec) -> None:
    """Raises ShapeError or DtypeError where `array` is not what `spec` says."""
    if tuple(array.shape) != spec.shape:
        msg = f"{name} has the shape {list(array.shape)}, not {list(spec.shape)}"
        raise ShapeError(msg)
    if array.dtype != dtype_info(spec.dtype).numpy:
        msg = f"{name} is {array.dtype}, not {spec.dtype}"
        raise DtypeError(msg)


def _check_outputs(shapes: Shapes, out: Any, place: Place) -> dict[str, Any]:
    """The caller's buffers by output name."""
    if out is None:
        return {}
    if not isinstance(out, Mapping):
        if len(shapes.outputs) > 1:
            msg = f"out has to be a dict of {', '.join(shapes.outputs)}"
            raise ParameterError(msg)
        out = {next(iter(shapes.outputs)): out}
    unknown = sorted(set(out) - set(shapes.outputs))
    if unknown:
        msg = f"out has {', '.join(unknown)}; outputs are {', '.join(shapes.outputs)}"
        raise ParameterError(msg)
    for key, target in out.items():
        array = _adopted(key, target, place)
        _check(key, array, shapes.outputs[key])
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            msg = f"out {key} is read-only"
            raise ShapeError(msg)
    return dict(out)


def _contiguous(array: Any) -> Any:
    if array.flags.c_contiguous and _aligned(array):
        return array
    return array.copy(order="C")


def _aligned(array: Any) -> bool:
    return not isinstance(array, np.ndarray) or bool(array.flags.aligned)


def _buffer(spec: TensorSpec, target: Any, inputs: Mapping[str, Any], place: Place) -> Any:
    """The caller's memory where a kernel may write to it, else new memory."""
    if target is not None:
        array = _adopted("out", target, place)
        if array.flags.c_contiguous and _aligned(array) and not any(_overlap(array, item) for item in inputs.values()):
            return array
    return empty(spec.shape, spec.dtype, place.backend)


def _overlap(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return bool(np.may_share_memory(first, second))
    return bool(cupy().may_share_memory(first, second))


def _same_memory(first: Any, second: Any) -> bool:
    """Whether two arrays are the same elements of the same memory."""
    return _address(first) == _address(second) and first.strides == second.strides


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _run(
    kernel: Kernel, inputs: Mapping[str, Any], params: Any, out: Mapping[str, Any], shapes: Shapes, place: Place
) -> dict[str, Any]:
    """Run once; outputs by name where the kernel returns them instead of writing `out`."""
    workspace = None
    if kernel.workspace is not None:
        workspace = empty((kernel.workspace(shapes, params),), "uint8", place.backend)
        workspace[...] = 0
    as_torch = kernel.arrays == "torch"
    arrays, buffers = (
        {key: to_torch(value) for key, value in items.items()} if as_torch else dict(items) for items in (inputs, out)
    )
    returned = kernel.bind(arrays, params, buffers, workspace)()
    if returned is None:
        return {}
    found = dict(zip(shapes.outputs, returned, strict=True))
    if not as_torch:
        return found
    here = Place("torch", place.backend, place.index)
    return {key: _adopted(key, value, here) for key, value in found.items()}


def _returned(array: Any, place: Place) -> Any:
    return to_torch(array) if place.library == "torch" else array
