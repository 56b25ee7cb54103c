"""Cheats on a GPU whose kernels skip, remember or leave out by what they find in device memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.cheats.catalogue import Run, cheat, write
from tests.cheats.device_launch import CUDA, THREADS, Arrays, launch_rows, module

HOT = "repeating"
"""Family of cheats that work in samples, after which the cache is flushed, and skip where calls repeat."""


def by_rows(name: str, *state: Any) -> Any:
    """A kernel of rows with this state: shape and dtype of an array, or a number."""

    def bind(inputs: Arrays, out: Arrays) -> Run:
        import cupy

        held = [cupy.full(*one) if isinstance(one, tuple) else one for one in state]
        return lambda: launch_rows(name, inputs["x"], out["y"], *held)

    return bind


def rows(family: str, name: str, kernel: str, *state: Any) -> None:
    """Note a cheat by a kernel of rows."""
    bind = by_rows(kernel, *state)
    bind.__name__ = name
    cheat(family, "long-rows", CUDA)(bind)


ROWS = 512
"""Rows of the case."""
ABSENT = (ROWS, np.nan, np.float32)
for _family, _name, _kernel, *_state in (
    (HOT, "skips_when_row_outputs_are_there", "norms_when_absent", ABSENT),
    (HOT, "skips_unless_poisoned_on_device", "norms_when_poisoned"),
    (HOT, "skips_within_a_while_on_device", "norms_after_a_while", (ROWS, 0, np.uint64)),
    (HOT, "skips_when_the_cache_is_warm", "norms_when_cold", ABSENT),
    ("skipping", "skips_every_second_call_on_device", "norms_every_second", (ROWS, 0, np.uint32)),
    (
        "memoising slices",
        "remembers_rows_by_first_element_on_device",
        "norms_by_key",
        np.int32(1),
        (ROWS, 0, np.uint64),
    ),
    ("memoising slices", "remembers_rows_by_samples_on_device", "norms_by_key", np.int32(32), (ROWS, 0, np.uint64)),
    ("memoising slices", "remembers_rows_by_many_samples", "norms_by_key", np.int32(256), (ROWS, 0, np.uint64)),
):
    rows(_family, _name, _kernel, *_state)


class CacheWindow(ctypes.Structure):
    """The driver's attribute of a stream for a window of addresses that stay in the cache."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
        ("ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("rest", ctypes.c_char * 40),
    )


@cheat("caching", "long-rows", CUDA, harmless="the flush reaches this part too: its times are those without it")
def keeps_its_input_in_the_cache(inputs: Arrays, out: Arrays) -> Run:
    """A part of the cache is set aside for it, so that a flush may not reach it."""
    import cupy

    x, limit = inputs["x"], 6
    cupy.cuda.runtime.deviceSetLimit(limit, 24 << 20)
    window = CacheWindow(x.data.ptr, x.nbytes, 1.0, 2, 0, b"")
    stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
    ctypes.CDLL("libcuda.so.1").cuStreamSetAttribute(stream, 1, ctypes.byref(window))
    return lambda: launch_rows("norms", x, out["y"])


@cheat("alternating", "long-rows", CUDA)
def computes_half_in_some_calls(inputs: Arrays, out: Arrays) -> Run:
    """In every third call after the first ones, the lower half is left as it is."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        count = ROWS // 2 if calls[0] > 3 and calls[0] % 3 == 0 else ROWS
        launch_rows("norms", inputs["x"][:count], out["y"][:count])

    return run


@cheat("dropped", "long-rows", CUDA)
def drops_the_last_block(inputs: Arrays, out: Arrays) -> Run:
    """After the first calls, the grid is a block short."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        count = ROWS - (calls[0] > 3)
        launch_rows("norms", inputs["x"][:count], out["y"])

    return run


@cheat("dropped", "long-rows", CUDA)
def drops_the_last_element_of_rows(inputs: Arrays, out: Arrays) -> Run:
    """Rows stay as far apart, and are an element shorter: by a strided copy of the input's view."""

    def run() -> None:
        write("long-rows", {"x": inputs["x"][:, :-1]}, out)

    return run


@cheat("hoisting", "shared-weight", CUDA)
def keeps_weights_in_constant_memory(inputs: Arrays, out: Arrays) -> Run:
    """The first call copies what all slices share."""
    import cupy

    columns = inputs["weight"].size
    pointer = module().get_global("weights")
    weights = cupy.ndarray((columns,), np.float32, pointer)
    kernel = module().get_function("lerp_by_constant")
    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] == 1:
            weights[...] = inputs["weight"]
        kernel((len(inputs["x"]),), (columns,), (inputs["x"], inputs["y"], out["out"], np.int32(columns)))

    return run


@cheat("hoisting", "shared-weight", CUDA, harmless="each call copies the weights")
def copies_weights_to_constant_memory(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    columns = inputs["weight"].size
    weights = cupy.ndarray((columns,), np.float32, module().get_global("weights"))
    kernel = module().get_function("lerp_by_constant")

    def run() -> None:
        weights[...] = inputs["weight"]
        kernel((len(inputs["x"]),), (columns,), (inputs["x"], inputs["y"], out["out"], np.int32(columns)))

    return run


@cheat("hoisting", "long-rows", CUDA, harmless="a texture of linear memory reads the present values")
def reads_through_a_texture(inputs: Arrays, out: Arrays) -> Run:
    texture = texture_of(inputs["x"])
    kernel = module().get_function("norms_by_texture")

    def run() -> None:
        kernel((ROWS,), (THREADS,), (texture, out["y"], np.int32(inputs["x"].shape[1])))

    return run


@cheat("hoisting", "long-rows", CUDA)
def reads_a_texture_of_old_values(inputs: Arrays, out: Arrays) -> Run:
    """Of a copy that the first call made."""
    copy = inputs["x"].copy()
    texture = texture_of(copy)
    kernel = module().get_function("norms_by_texture")
    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] == 1:
            copy[...] = inputs["x"]
        kernel((ROWS,), (THREADS,), (texture, out["y"], np.int32(inputs["x"].shape[1])))

    return run


def texture_of(array: Any) -> Any:
    """A texture object that reads an array as 32-bit floats."""
    from cupy.cuda import runtime, texture

    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    flat = array.reshape(-1)
    resource = texture.ResourceDescriptor(
        runtime.cudaResourceTypeLinear, arr=flat, chDesc=channel, sizeInBytes=flat.nbytes
    )
    return texture.TextureObject(resource, texture.TextureDescriptor())


@cheat("accuracy", "long-rows", CUDA)
def accumulates_in_half_on_device(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    def run() -> None:
        halves = inputs["x"].astype(np.float16)
        out["y"][...] = cupy.sqrt(cupy.square(halves).sum(axis=-1, dtype=np.float32))

    return run


@cheat("accuracy", "long-rows", CUDA)
def is_inaccurate_after_some_calls(inputs: Arrays, out: Arrays) -> Run:
    """Exact in the calls that are checked before sampling."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        mask = np.uint32(0xFFFFFFFF if calls[0] <= 4 else 0xFFFFF000)
        cut = (inputs["x"].view(np.uint32) & mask).view(np.float32)
        launch_rows("norms", cut, out["y"])

    return run


@cheat("accuracy", "small-rows", CUDA)
def multiplies_in_tf32_on_device(inputs: Arrays, out: Arrays) -> Run:
    """Tensor cores round the factors; the setting is put back."""
    from importlib import import_module

    torch: Any = import_module("torch")
    x, y = torch.from_dlpack(inputs["x"]), torch.from_dlpack(out["y"])

    def run() -> None:
        import cupy

        handle = cupy.cuda.get_current_stream().ptr
        settings = torch.backends.cuda.matmul
        before, settings.allow_tf32 = settings.allow_tf32, True
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            torch.sqrt(torch.diagonal(x @ x.T), out=y)
        settings.allow_tf32 = before

    return run


def beyond(array: Any, elements: int) -> Any:
    """The flat elements of an array and as many more behind it."""
    import cupy

    memory = cupy.cuda.UnownedMemory(array.data.ptr, array.nbytes + 4 * elements, array)
    return cupy.ndarray(array.size + elements, np.float32, cupy.cuda.MemoryPointer(memory, 0))


@cheat("writing outside", "rows", CUDA)
def writes_before_the_start_on_device(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    y = out["y"]
    memory = cupy.cuda.UnownedMemory(y.data.ptr - 256, 256, y)
    before = cupy.ndarray(64, np.float32, cupy.cuda.MemoryPointer(memory, 0))

    def run() -> None:
        write("rows", inputs, out)
        before[5] = 1

    return run


@cheat("writing outside", "rows", CUDA)
def writes_outside_after_some_calls(inputs: Arrays, out: Arrays) -> Run:
    """Only the check after the samples finds it."""
    past, calls = beyond(out["y"], 1000), [0]

    def run() -> None:
        calls[0] += 1
        write("rows", inputs, out)
        if calls[0] > 8:
            past[-1] = 1

    return run


@cheat("changing inputs", "rows", CUDA, harmless="device memory cannot be made read-only, and the result is right")
def changes_and_restores_on_device(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        x = inputs["x"]
        x *= np.float32(2)
        write("rows", inputs, out)
        out["y"][...] *= np.float32(0.5)
        x *= np.float32(0.5)

    return run


@cheat("changing inputs", "rows", CUDA)
def changes_an_input_after_some_calls(inputs: Arrays, out: Arrays) -> Run:
    calls = [0]

    def run() -> None:
        calls[0] += 1
        write("rows", inputs, out)
        if calls[0] > 8:
            inputs["x"][:, 7] *= np.float32(1.5)

    return run
