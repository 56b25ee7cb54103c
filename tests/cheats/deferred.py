"""Cheats whose values come after the call: lazy tensors and classes, pages of inputs, allocators, older threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from importlib import import_module
from typing import Any

import numpy as np

from opgauge.harness.worker.inputs import PAGE
from opgauge.harness.worker.process_settings import _put_back_allocator
from tests.cheats.adaptive import norms
from tests.cheats.catalogue import Run, cheat, compute, write

Arrays = dict[str, Any]
MAP_FIXED = 0x10
"""Flag of mmap: at this address."""
_KEPT: list[Any] = []


class _AsksForItsClass:
    """An object that works when somebody asks whether it is a tuple."""

    def __init__(self, work: Run) -> None:
        self._work = work

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        self._work()
        return object


@cheat("lazy", "long-rows")
def computes_when_its_class_is_asked(inputs: Arrays, out: Arrays) -> Run:
    promise = _AsksForItsClass(lambda: write("long-rows", inputs, out))
    return lambda: promise


@cheat("lazy", "long-rows")
def computes_when_its_metaclass_is_asked(inputs: Arrays, out: Arrays) -> Run:
    """The module of a class is a property of the class of that class."""
    ready = np.zeros_like(out["y"])

    def module(_: Any) -> str:
        ready[...] = compute("long-rows", inputs)["y"]
        return "numpy"

    meta = type("Meta", (type,), {"__module__": property(module)})
    kind = meta("Promise", (np.ndarray,), {})
    promise = ready.view(kind)
    return lambda: (promise,)


@cheat("lazy", "long-rows")
def computes_on_a_lazy_device(inputs: Arrays, out: Arrays) -> Run:
    """Torch's lazy tensors are computed when they are copied to the host."""
    torch: Any = import_module("torch")
    import_module("torch._lazy.ts_backend").init()
    x = torch.from_numpy(inputs["x"])
    del out

    def run() -> Any:
        return (x.to("lazy").double().square().sum(-1).sqrt().float(),)

    return run


@cheat("views", "negated")
def returns_a_negative_view(inputs: Arrays, out: Arrays) -> Run:
    """Torch negates it when it is read."""
    torch: Any = import_module("torch")
    x = torch.from_numpy(inputs["x"])
    del out
    return lambda: (x._neg_view(),)


@cheat("views", "unchanged-large")
def returns_other_pages_of_its_input(inputs: Arrays, out: Arrays) -> Run:
    """The pages of the input become visible at a second address."""
    del out
    x = inputs["x"]
    place = ctypes.CDLL(None).mmap
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    start = x.ctypes.data // PAGE * PAGE
    length = -(-(x.ctypes.data + x.nbytes - start) // PAGE) * PAGE
    file = os.memfd_create("pages")
    os.ftruncate(file, length)
    other = mmap.mmap(file, length)
    other[:] = ctypes.string_at(start, length)
    place(start, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, file, 0)
    os.close(file)
    found = np.frombuffer(other, np.float32, x.size, x.ctypes.data - start).reshape(x.shape)
    return lambda: (found,)


_WANTED: list[Any] = []
_READY: dict[bytes, Any] = {}


def _work_for_later_trials() -> None:
    while True:
        for x in tuple(_WANTED):
            key = x[::16, :8].tobytes()
            if key not in _READY:
                found = norms(x)
                if x[::16, :8].tobytes() == key:
                    _READY.clear()
                    _READY[key] = found
        time.sleep(0.0002)


@cheat("lazy", "long-rows")
def computes_in_an_older_thread(inputs: Arrays, out: Arrays) -> Run:
    """The thread is older than later trials of the process."""
    if not any(one.name == "early" for one in threading.enumerate()):
        threading.Thread(target=_work_for_later_trials, daemon=True, name="early").start()
    _WANTED[:] = [inputs["x"]]
    _READY.clear()

    def run() -> None:
        known = _READY.get(inputs["x"][::16, :8].tobytes())
        out["y"][...] = norms(inputs["x"]) if known is None else known

    return run


def _allocator(work: Run) -> None:
    """Let NumPy allocate by a function that works first."""
    calls: list[Any] = [getattr(ctypes.CDLL(None), name) for name in ("malloc", "calloc", "realloc", "free")]
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    kinds = [(pointer, size), (pointer, size, size), (pointer, pointer, size), (None, pointer)]
    for call, (result, *arguments) in zip(calls, kinds, strict=True):
        call.restype, call.argtypes = result, arguments
    malloc, calloc, realloc, free = calls

    def first_work(_: Any, nbytes: int) -> Any:
        work()
        return malloc(nbytes or 1)

    functions = (
        ctypes.CFUNCTYPE(pointer, pointer, size)(first_work),
        ctypes.CFUNCTYPE(pointer, pointer, size, size)(lambda _, count, each: calloc(count or 1, each or 1)),
        ctypes.CFUNCTYPE(pointer, pointer, pointer, size)(lambda _, old, nbytes: realloc(old, nbytes or 1)),
        ctypes.CFUNCTYPE(None, pointer, pointer, size)(lambda _, old, __: free(old)),
    )
    fields: list[Any] = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", pointer)]
    fields += [(f"function_{number}", type(one)) for number, one in enumerate(functions)]
    handler = type("Handler", (ctypes.Structure,), {"_fields_": fields})(b"other", 1, None, *functions)
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
    capsule = new_capsule(ctypes.addressof(handler), b"mem_handler", None)
    _KEPT.extend((handler, functions, capsule))
    _put_back_allocator(capsule)


@cheat("lazy", "long-rows")
def computes_when_numpy_allocates(inputs: Arrays, out: Arrays) -> Run:
    """The first array that is allocated after a call triggers the work."""
    wanted: list[int] = []

    def work() -> None:
        if wanted:
            wanted.clear()
            write("long-rows", inputs, out)

    begun: list[int] = []

    def run() -> None:
        if not begun:
            begun.append(1)
            _allocator(work)
        wanted[:] = [1]

    return run
