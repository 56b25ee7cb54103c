"""Cheats on a GPU by graphs, returned objects, replaced functions of libraries, and settings that outlast the trial."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from tests.cheats.catalogue import Run, cheat, compute, write
from tests.cheats.device_launch import CUDA, Arrays, burn, launch_rows, side_stream

PERSISTING_LIMIT, PRINTF_LIMIT, STACK_LIMIT = 6, 1, 0
"""The runtime's numbers of limits: persisting cache, buffer of printf, stack of a thread."""
TF32, DEFAULT_MATH = 3, 0
"""Math modes of cuBLAS."""


def captured(work: Callable[[], object]) -> Any:
    """A graph of the launches of `work`, captured on a stream of its own."""
    stream = side_stream()
    with stream:
        stream.begin_capture()
        work()
        return stream.end_capture()


@cheat("graphs", "long-rows", CUDA)
def replays_a_graph_of_old_contents(inputs: Arrays, out: Arrays) -> Run:
    """The graph reads a copy of the inputs."""
    import cupy

    graphs: list[Any] = []
    copy = cupy.empty_like(inputs["x"])
    launch_rows("norms", copy, out["y"])

    def run() -> None:
        if not graphs:
            copy[...] = inputs["x"]
            graphs.append(captured(lambda: launch_rows("norms", copy, out["y"])))
        graphs[0].launch(cupy.cuda.get_current_stream())

    return run


@cheat("graphs", "long-rows", CUDA, harmless="each call replays the whole work on the timed stream")
def replays_a_graph(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    launch_rows("norms", inputs["x"], out["y"])
    graph = captured(lambda: launch_rows("norms", inputs["x"], out["y"]))
    return lambda: graph.launch(cupy.cuda.get_current_stream())


@cheat("graphs", "long-rows", CUDA)
def replays_a_graph_on_its_own_stream(inputs: Arrays, out: Arrays) -> Run:
    stream = side_stream()
    launch_rows("norms", inputs["x"], out["y"])
    graph = captured(lambda: launch_rows("norms", inputs["x"], out["y"]))
    return lambda: graph.launch(stream)


@cheat("graphs", "long-rows", CUDA)
def works_less_when_captured(inputs: Arrays, out: Arrays) -> Run:
    """Graphs of calls, from which hot times and lists of kernels come, have hardly any work."""
    import cupy

    def run() -> None:
        if cupy.cuda.get_current_stream().is_capturing():
            burn(0)
        else:
            launch_rows("norms", inputs["x"], out["y"])

    return run


@cheat("lazy", "sum", CUDA)
def returns_a_lazy_cupy_array(inputs: Arrays, out: Arrays) -> Run:
    """A subclass that claims to be CuPy's own and computes when it is copied to the host."""
    import cupy

    class LazyArray(cupy.ndarray):  # type: ignore[misc]
        def get(self, *_: Any, **__: Any) -> Any:
            return compute("sum", inputs)["out"].get()

    LazyArray.__module__, LazyArray.__name__ = "cupy", "LazyArray"
    cupy.LazyArray = LazyArray
    promise = out["out"].view(type=LazyArray)
    return lambda: (promise,)


@cheat("lazy", "sum", CUDA)
def returns_a_lazy_tensor(inputs: Arrays, out: Arrays) -> Run:
    """A subclass that claims to be torch's own and computes when it is exported."""
    torch: Any = import_module("torch")

    class LazyTensor(torch.Tensor):  # type: ignore[misc]
        def detach(self) -> Any:
            return torch.from_dlpack(compute("sum", inputs)["out"])

    LazyTensor.__module__, LazyTensor.__name__ = "torch", "LazyTensor"
    torch.LazyTensor = LazyTensor
    promise = torch.from_dlpack(out["out"]).as_subclass(LazyTensor)
    return lambda: (promise,)


class _Interface:
    """An object that computes when its address is asked for."""

    def __init__(self, inputs: Arrays) -> None:
        self._inputs = inputs

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._found = compute("sum", self._inputs)["out"]
        found: dict[str, Any] = self._found.__cuda_array_interface__
        return found


@cheat("lazy", "sum", CUDA)
def returns_an_interface_that_computes(inputs: Arrays, out: Arrays) -> Run:
    return lambda: (_Interface(inputs),)


@cheat("lazy", "sum", CUDA)
def computes_when_collected(inputs: Arrays, out: Arrays) -> Run:
    """A callback of the garbage collector works, which runs between samples."""

    def work(phase: str, _: object) -> None:
        if phase == "start":
            write("sum", inputs, out)

    def run() -> None:
        if work not in gc.callbacks:
            write("sum", inputs, out)
            gc.callbacks.append(work)

    return run


@cheat("returned arrays", "sum", CUDA)
def returns_another_dtype(inputs: Arrays, out: Arrays) -> Run:
    return lambda: (compute("sum", inputs)["out"].astype(np.float64),)


@cheat("returned arrays", "sum", CUDA)
def returns_freed_memory(inputs: Arrays, out: Arrays) -> Run:
    """The memory is the pool's when the call returns, and an earlier result may still be there."""
    import cupy

    left: list[Any] = []

    def run() -> tuple[Any]:
        if not left:
            found = compute("sum", inputs)["out"]
            memory = cupy.cuda.UnownedMemory(found.data.ptr, found.nbytes, None)
            left.append(cupy.ndarray(found.shape, np.float32, cupy.cuda.MemoryPointer(memory, 0)))
        return (left[0],)

    return run


@cheat("returned arrays", "sum", CUDA, harmless="its strides say where the elements are")
def returns_a_transposed_array(inputs: Arrays, out: Arrays) -> Run:
    return lambda: ((inputs["in_0"].T.copy() + inputs["in_1"].T).T,)


@cheat("returned arrays", "sum", CUDA, harmless="pages move within the call that writes them")
def returns_managed_memory(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    managed = cupy.ndarray(out["out"].shape, np.float32, cupy.cuda.malloc_managed(out["out"].nbytes))

    def run() -> tuple[Any]:
        managed[...] = inputs["in_0"] + inputs["in_1"]
        return (managed,)

    return run


@cheat("returned arrays", "sum", CUDA, harmless="the timed stream makes the copy")
def returns_pinned_memory(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    shape = out["out"].shape
    memory = cupy.cuda.alloc_pinned_memory(out["out"].nbytes)
    host = np.frombuffer(memory, np.float32, out["out"].size).reshape(shape)

    def run() -> tuple[Any]:
        found = compute("sum", inputs)["out"]
        found.data.copy_to_host_async(ctypes.c_void_p(host.ctypes.data), host.nbytes)
        return (host,)

    return run


def misbehaves(family: str, name: str, act: Callable[[], object], *, harmless: str = "", call: int = 1) -> None:
    """Note a kernel that works, and does something else in one of its calls."""

    def bind(inputs: Arrays, out: Arrays) -> Run:
        calls = [0]

        def run() -> None:
            calls[0] += 1
            write("rows", inputs, out)
            if calls[0] == call:
                act()

        return run

    bind.__name__ = name
    cheat(family, "rows", CUDA, harmless=harmless)(bind)


def replacing(module: str, owner: str, name: str, how: Callable[[Any], Any]) -> Callable[[], None]:
    """An act that replaces an attribute of an object in a module. how: makes the new one of the old one."""

    def act() -> None:
        found: Any = import_module(module)
        for part in filter(None, owner.split(".")):
            found = getattr(found, part)
        setattr(found, name, how(getattr(found, name)))

    return act


def _same(old: Any) -> Any:
    """A function that does the same."""

    def new(*given: Any, **named: Any) -> Any:
        return old(*given, **named)

    return new


def timers() -> list[Any]:
    """The timers of the process, found among all objects."""
    kind = import_module("opgauge.harness.measure.cuda").CudaTimer
    return [one for one in gc.get_objects() if type(one) is kind]


def replace_spin() -> None:
    """The timer's kernel that holds the stream becomes an empty one."""
    for one in timers():
        one._spin = one._empty


def replace_timers_event() -> None:
    """The timer's second event becomes its first one."""
    for one in timers():
        one._stop = one._start


def leave_cublas_in_tf32() -> None:
    """Later matrix products of CuPy are less precise."""
    import cupy

    cublas: Any = import_module("cupy_backends.cuda.libs.cublas")
    cublas.setMathMode(cupy.cuda.device.get_cublas_handle(), TF32)


def leave_a_persisting_cache() -> None:
    """Set a part of the cache aside."""
    from cupy.cuda import runtime

    runtime.deviceSetLimit(PERSISTING_LIMIT, 16 << 20)


def leave_small_limits() -> None:
    """Shrink the buffer of printf, and raise the stack."""
    from cupy.cuda import runtime

    runtime.deviceSetLimit(PRINTF_LIMIT, 1 << 16)
    runtime.deviceSetLimit(STACK_LIMIT, 8 << 10)


def limit_the_pool() -> None:
    """Later kernels cannot allocate."""
    import cupy

    cupy.get_default_memory_pool().set_limit(size=1 << 20)


def leave_managed_allocator() -> None:
    """Later arrays are in managed memory."""
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)


def leave_no_accelerators() -> None:
    """Later reductions of CuPy do without CUB."""
    accelerators: Any = import_module("cupy._core")
    accelerators.set_reduction_accelerators([])
    accelerators.set_routine_accelerators([])


def limit_torch() -> None:
    """Later tensors have a thousandth of the memory."""
    torch: Any = import_module("torch")
    torch.cuda.set_per_process_memory_fraction(0.001)


def change_cudnn() -> None:
    """Later convolutions of torch do without cuDNN."""
    torch: Any = import_module("torch")
    torch.backends.cudnn.enabled = False
    torch.backends.cudnn.benchmark = True


def spin_on_the_host() -> None:
    """Waits for the device spin, as in a process that sets this flag: times of the device are the same."""
    ctypes.CDLL("libcuda.so.1").cuCtxSetFlags(1)


TOUCHING = "touching timer or checker"
LEFT = "state left behind"
PUT_BACK = "the harness puts it back for the next kernel"
for _name, _act in {
    "replaces_event_record": replacing("cupy.cuda", "Event", "record", _same),
    "replaces_event_class": replacing("cupy.cuda", "", "Event", lambda old: type("Event", (old,), {})),
    "replaces_stream_synchronize": replacing("cupy.cuda", "Stream", "synchronize", _same),
    "replaces_array_copy_to_host": replacing("cupy", "ndarray", "get", _same),
    "replaces_array_equal_on_device": replacing("cupy", "", "array_equal", lambda _: lambda *_: True),
    "replaces_array_import": replacing("cupy", "", "from_dlpack", _same),
    "replaces_memory_hook": replacing("cupy.cuda", "MemoryHook", "__enter__", _same),
    "replaces_device_clock": replacing("opgauge.harness.measure.cuda", "", "perf_counter_ns", _same),
    "replaces_torch_memory": replacing("torch.cuda", "", "memory_allocated", lambda _: lambda *_: 0),
    "replaces_torch_tensor_method": replacing("torch", "Tensor", "detach", _same),
    "replaces_compiler": replacing("cuda.core", "", "Program", _same),
    "replaces_spin": replace_spin,
    "replaces_timers_event": replace_timers_event,
}.items():
    misbehaves(TOUCHING, _name, _act)
for _act, _harmless in (
    (leave_cublas_in_tf32, PUT_BACK),
    (leave_a_persisting_cache, PUT_BACK),
    (leave_small_limits, PUT_BACK),
    (limit_the_pool, PUT_BACK),
    (leave_managed_allocator, ""),
    (leave_no_accelerators, PUT_BACK),
    (limit_torch, PUT_BACK),
    (change_cudnn, PUT_BACK),
    (spin_on_the_host, "times of the device are the same"),
):
    misbehaves(LEFT, _act.__name__, _act, harmless=_harmless)
