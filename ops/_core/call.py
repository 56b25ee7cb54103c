"""`call`: run an op on the caller's arrays, with every argument checked.

Kernels rely on buffers of the op's shapes and dtypes, C-contiguous and on one device. `call`
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

from opgauge.ops._core.backend import address_of, cupy, empty, exchanged, may_overlap, to_torch
from opgauge.ops._core.dtype import dtype_info, dtype_name
from opgauge.ops._core.errors import BackendError, DtypeError, ParameterError, ShapeError
from opgauge.ops._core.kernel import Kernel
from opgauge.ops._core.op import Op, Shapes, TensorSpec
from opgauge.ops._core.registry import default_implementation, find_kernel, find_op
from opgauge.ops._core.single_call import single_call


@dataclass(frozen=True, slots=True)
class ArrayLocation:
    """Location of arrays: their library (numpy, cupy or torch), the backend and the index of its device."""

    library: str
    backend: str
    index: int = 0


def call(name: str, *, implementation: str | None = None, out: Any = None, **arguments: Any) -> Any:
    """Run the op `name` on NumPy, CuPy or torch arrays and return its outputs in the same library.

    arguments: the op's inputs (arrays) and parameters by name. A parameter that may be a tensor is an input if an array
        is given for it.
    implementation: by default `optimized`, or the only one of an op without it.
    out: destination: an array, or for several outputs a dict of arrays by name; None allocates.

    Returns the output, or a dict by name if there are several. Non-contiguous inputs are copied unless the
    kernel accepts them. An `out` that shares memory with an input, or is not contiguous, is filled by a final copy.
    On CUDA the kernel is enqueued on the caller's current stream, of torch or CuPy, without synchronization.

    Raises OpNotFoundError, KernelNotFoundError, and for arguments that do not fit the op or each other ShapeError,
    DtypeError, ParameterError or BackendError.
    """
    op = find_op(name)
    inputs, params = _split(op, arguments)
    location = _common_location(inputs)
    with _current(location):
        arrays = {key: _adopted(key, value, location) for key, value in inputs.items()}
        dtype = _dtype_of(op, arrays)
        shapes = op.infer({key: tuple(array.shape) for key, array in arrays.items()}, dtype, params)
        _check_inputs(op, arrays, shapes)
        kernel = find_kernel(name, implementation or default_implementation(name), location.backend, dtype)
        if not kernel.strided:
            arrays = {key: _contiguous(array) for key, array in arrays.items()}
        given = _check_outputs(shapes, out, location)
        buffers = {
            key: _buffer(spec, given.get(key), arrays, location)
            for key, spec in shapes.outputs.items()
            if spec.view_of is None
        }
        returned = _run(kernel, arrays, params, buffers, shapes, location)
        found = {key: returned.get(key, buffers.get(key)) for key in shapes.outputs}
        for key, target in given.items():
            adopted = _adopted(key, target, location)
            if found[key] is not adopted and not _same_memory(found[key], adopted):
                adopted[...] = found[key]
        results = {key: given[key] if key in given else _returned(value, location) for key, value in found.items()}
    return next(iter(results.values())) if len(results) == 1 else results


def _split(op: Op, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Arrays by input name, and the op's parameters; raises ParameterError for unknown names."""
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
    """Parameter value as the op expects it: NumPy scalars become Python's, lists become tuples."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value


def _location_of(value: Any) -> ArrayLocation:
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        device = value.device
        if device.type not in {"cpu", "cuda"}:
            msg = f"a torch tensor on {device}: only cpu and cuda are supported"
            raise BackendError(msg)
        return ArrayLocation("torch", device.type, device.index or 0)
    if library == "cupy":
        return ArrayLocation("cupy", "cuda", int(value.device.id))
    if isinstance(value, np.ndarray):
        return ArrayLocation("numpy", "cpu")
    msg = f"{type(value).__name__} is not an array of NumPy, CuPy or torch"
    raise BackendError(msg)


def _common_location(inputs: Mapping[str, Any]) -> ArrayLocation:
    places = {key: _location_of(value) for key, value in inputs.items()}
    if len(set(places.values())) > 1:
        where = ", ".join(
            f"{key} ({location.library}, {location.backend}:{location.index})" for key, location in places.items()
        )
        msg = f"arrays of different libraries or devices: {where}"
        raise BackendError(msg)
    return next(iter(places.values()))


@contextmanager
def _current(location: ArrayLocation) -> Iterator[None]:
    """Make the caller's device and stream CuPy's current ones in this context."""
    if location.backend == "cpu":
        yield
        return
    cuda = cupy().cuda
    with cuda.Device(location.index):
        if location.library != "torch":
            yield
            return
        stream = import_module("torch").cuda.current_stream(location.index).cuda_stream
        with _adopted_stream(cuda, stream, location.index):
            yield


@dataclass(frozen=True)
class _Handle:
    """A stream by its address, as the protocol of CUDA streams wants it (version 0)."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _adopted_stream(cuda: Any, address: int, device: int) -> Any:
    """A stream of another library as CuPy's; where CuPy has `from_external`, it deprecates `ExternalStream`."""
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_Handle(address))
    return cuda.ExternalStream(address, device)


def _adopted(name: str, value: Any, location: ArrayLocation) -> Any:
    """A NumPy or CuPy array on the same memory; raises DtypeError for unsupported dtypes."""
    if _location_of(value) != location:
        msg = f"{name} is not where the other arrays are: {location.library} on {location.backend}:{location.index}"
        raise BackendError(msg)
    if location.library != "torch":
        if not value.dtype.isnative:
            msg = f"{name} has a non-native byte order: {value.dtype}"
            raise DtypeError(msg)
        return value
    tensor = value.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    source, dtype = exchanged(tensor)
    array = source.numpy() if location.backend == "cpu" else cupy().from_dlpack(source)
    return array.view(dtype_info(dtype).numpy) if dtype else array


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
    """Raise ShapeError or DtypeError if `array` does not match `spec`."""
    if tuple(array.shape) != spec.shape:
        msg = f"{name} has the shape {list(array.shape)}, not {list(spec.shape)}"
        raise ShapeError(msg)
    if array.dtype != dtype_info(spec.dtype).numpy:
        msg = f"{name} is {array.dtype}, not {spec.dtype}"
        raise DtypeError(msg)


def _check_outputs(shapes: Shapes, out: Any, location: ArrayLocation) -> dict[str, Any]:
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
        array = _adopted(key, target, location)
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


def _buffer(spec: TensorSpec, target: Any, inputs: Mapping[str, Any], location: ArrayLocation) -> Any:
    """The caller's memory if a kernel may write to it, else new memory."""
    if target is not None:
        array = _adopted("out", target, location)
        is_apart = not any(may_overlap(array, item) for item in inputs.values())
        if array.flags.c_contiguous and _aligned(array) and is_apart:
            return array
    return empty(spec.shape, spec.dtype, location.backend)


def _same_memory(first: Any, second: Any) -> bool:
    """Whether two arrays are the same elements of the same memory."""
    return address_of(first) == address_of(second) and first.strides == second.strides


def _run(
    kernel: Kernel,
    inputs: Mapping[str, Any],
    params: Any,
    out: Mapping[str, Any],
    shapes: Shapes,
    location: ArrayLocation,
) -> dict[str, Any]:
    """Run once; returns outputs by name if the kernel returns them instead of writing `out`."""
    workspace = None
    if kernel.workspace is not None:
        workspace = empty((kernel.workspace(shapes, params),), "uint8", location.backend)
        workspace[...] = 0
    as_torch = kernel.arrays == "torch"
    arrays, buffers = (
        {key: to_torch(value) for key, value in items.items()} if as_torch else dict(items) for items in (inputs, out)
    )
    with single_call():
        returned = kernel.bind(arrays, params, buffers, workspace)()
    if returned is None:
        return {}
    found = dict(zip(shapes.outputs, returned, strict=True))
    if not as_torch:
        return found
    here = ArrayLocation("torch", location.backend, location.index)
    return {key: _adopted(key, value, here) for key, value in found.items()}


def _returned(array: Any, location: ArrayLocation) -> Any:
    return to_torch(array) if location.library == "torch" else array
