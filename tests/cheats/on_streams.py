"""Cheats on a GPU that work where the timed stream does not wait: other streams, the host, threads, other contexts."""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from tests.cheats.catalogue import Run, cheat, compute, write
from tests.cheats.device_launch import CUDA, Arrays, burn, function, launch_rows, launch_sum, side_stream

LONG_NS = 1_500_000_000
"""Duration of a kernel that is left to the next trial."""
_KEPT: list[Any] = []


@cheat("other streams", "sum", CUDA)
def works_briefly_on_another_stream(inputs: Arrays, out: Arrays) -> Run:
    """For 20 µs: the device is idle before the harness looks."""
    stream = side_stream()

    def run() -> None:
        with stream:
            launch_sum(inputs, out["out"])

    return run


@cheat("other streams", "long-rows", CUDA)
def computes_early_and_copies(inputs: Arrays, out: Arrays) -> Run:
    """Another stream computes while the timed one still waits; the latter copies the small result."""
    import cupy

    stream, done, ready = side_stream(), cupy.cuda.Event(disable_timing=True), cupy.empty_like(out["y"])

    def run() -> None:
        with stream:
            launch_rows("norms", inputs["x"], ready)
            done.record(stream)
        cupy.cuda.get_current_stream().wait_event(done)
        out["y"][...] = ready

    return run


@cheat("other streams", "long-rows", CUDA)
def computes_early_and_again_if_changed(inputs: Arrays, out: Arrays) -> Run:
    """The timed stream compares some elements with those that the other stream has read, and works if they differ."""
    import cupy

    stream, done = side_stream(), cupy.cuda.Event(disable_timing=True)
    ready, keys = cupy.empty_like(out["y"]), cupy.empty_like(inputs["x"][:, ::64])

    def run() -> None:
        x = inputs["x"]
        with stream:
            keys[...] = x[:, ::64]
            launch_rows("norms", x, ready)
            done.record(stream)
        cupy.cuda.get_current_stream().wait_event(done)
        launch_rows("norms_if_other", x, out["y"], keys, ready)

    return run


@cheat("other streams", "sum", CUDA)
def forks_without_joining(inputs: Arrays, out: Arrays) -> Run:
    """The other stream waits for the timed one, but not the other way round."""
    import cupy

    stream, begun = side_stream(), cupy.cuda.Event(disable_timing=True)

    def run() -> None:
        begun.record(cupy.cuda.get_current_stream())
        stream.wait_event(begun)
        with stream:
            launch_sum(inputs, out["out"])

    return run


@cheat("other streams", "sum", CUDA, harmless="both streams wait for each other")
def forks_and_joins(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    stream = side_stream()
    begun, done = cupy.cuda.Event(disable_timing=True), cupy.cuda.Event(disable_timing=True)

    def run() -> None:
        begun.record(cupy.cuda.get_current_stream())
        stream.wait_event(begun)
        with stream:
            launch_sum(inputs, out["out"])
            done.record(stream)
        cupy.cuda.get_current_stream().wait_event(done)

    return run


@cheat("other streams", "sum", CUDA)
def works_on_the_per_thread_stream(inputs: Arrays, out: Arrays) -> Run:
    """It waits for the legacy default stream only."""
    import cupy

    def run() -> None:
        with cupy.cuda.Stream.ptds:
            launch_sum(inputs, out["out"])

    return run


@cheat("other streams", "sum", CUDA, harmless="the timed stream waits for the legacy default stream")
def works_on_the_legacy_stream(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    def run() -> None:
        with cupy.cuda.Stream.null:
            launch_sum(inputs, out["out"])

    return run


@cheat("other streams", "sum", CUDA)
def waits_on_the_host_for_another_stream(inputs: Arrays, out: Arrays) -> Run:
    """It is done when the call returns, but the timed stream has not begun."""
    stream = side_stream()

    def run() -> None:
        with stream:
            launch_sum(inputs, out["out"])
        stream.synchronize()

    return run


@cheat("other streams", "rows", CUDA)
def computes_on_the_host_beside_the_stream(inputs: Arrays, out: Arrays) -> Run:
    """NumPy computes while the timed stream waits; both copies are made by another one."""
    stream = side_stream()
    found = np.zeros(out["y"].shape, np.float32)

    def run() -> None:
        x = inputs["x"].get(stream=stream)
        stream.synchronize()
        found[...] = compute("rows", {"x": x})["y"]
        out["y"].set(found, stream=stream)
        stream.synchronize()

    return run


@cheat("other streams", "rows", CUDA, harmless="it waits for the timed stream, which it holds up")
def computes_on_the_host_in_order(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        out["y"].set(compute("rows", {"x": inputs["x"].get()})["y"])

    return run


@cheat("lazy", "sum", CUDA)
def launches_from_a_thread(inputs: Arrays, out: Arrays) -> Run:
    """A thread launches when the call has returned."""
    import cupy

    wanted, stream, device = threading.Event(), side_stream(), cupy.cuda.Device()

    def work() -> None:
        device.use()
        while wanted.wait(60):
            wanted.clear()
            with stream:
                launch_sum(inputs, out["out"])

    threading.Thread(target=work, daemon=True).start()
    return wanted.set


@cheat("lazy", "sum", CUDA)
def launches_from_a_host_function(inputs: Arrays, out: Arrays) -> Run:
    """A host function of another stream, which must not launch, wakes a thread that does."""
    import cupy

    wanted, stream, other, device = threading.Event(), side_stream(), side_stream(), cupy.cuda.Device()

    def work() -> None:
        device.use()
        while wanted.wait(60):
            wanted.clear()
            with other:
                launch_sum(inputs, out["out"])

    threading.Thread(target=work, daemon=True).start()

    def run() -> None:
        stream.launch_host_func(lambda _: wanted.set(), None)

    return run


@cheat("other streams", "sum", CUDA)
def leaves_another_stream_current(inputs: Arrays, out: Arrays) -> Run:
    """What the harness launches after the first call, it launches there too."""
    stream = side_stream()

    def run() -> None:
        stream.use()
        launch_sum(inputs, out["out"])

    return run


@cheat("lazy", "small-rows", CUDA)
def computes_before_the_call_by_a_polling_kernel(inputs: Arrays, out: Arrays) -> Run:
    """A kernel stays on the device after each call, and computes whenever the inputs have changed."""
    import cupy

    stream, x = side_stream(), inputs["x"]
    ready = cupy.full(out["y"].shape, np.nan, np.float32)

    def run() -> None:
        out["y"][...] = ready
        with stream:
            shape = (np.int32(len(x)), np.int32(x.shape[1]))
            function("watch")((1,), (32,), (x, ready, *shape, np.uint64(3_000_000)))

    launch_rows("norms", x, ready)
    return run


@cheat("state left behind", "rows", CUDA)
def leaves_a_kernel_running(inputs: Arrays, out: Arrays) -> Run:
    """The next kernel shares the device with it."""
    stream = side_stream()

    def run() -> None:
        write("rows", inputs, out)
        if stream.done:
            with stream:
                burn(LONG_NS // 30)

    return run


class _Bound:
    """A kernel that launches something when it is freed."""

    def __init__(self, inputs: Arrays, out: Arrays, act: Any) -> None:
        self._given = inputs, out
        weakref.finalize(self, act)

    def __call__(self) -> None:
        write("rows", *self._given)


@cheat("state left behind", "rows", CUDA, harmless="no call is timed then; the next trial waits for it")
def leaves_a_kernel_when_it_is_freed(inputs: Arrays, out: Arrays) -> Run:
    stream = side_stream()
    _KEPT.append(stream)

    def act() -> None:
        with stream:
            burn(LONG_NS)

    return _Bound(inputs, out, act)


@cheat("state left behind", "rows", CUDA)
def leaves_another_context_current(inputs: Arrays, out: Arrays) -> Run:
    """The timer returns to its own now and then."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    calls = [0]

    def run() -> None:
        calls[0] += 1
        write("rows", inputs, out)
        if calls[0] == 6:
            driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
        elif context:
            driver.cuCtxSetCurrent(context)

    return run


@cheat("state left behind", "rows", CUDA)
def resets_the_device(inputs: Arrays, out: Arrays) -> Run:
    calls = [0]

    def run() -> None:
        calls[0] += 1
        write("rows", inputs, out)
        if calls[0] == 6:
            ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset_v2(0)

    return run


@cheat("state left behind", "rows", CUDA)
def breaks_the_context_and_hides_it(inputs: Arrays, out: Arrays) -> Run:
    """Writes to an illegal address, and raises nothing itself."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        with suppress(Exception):
            write("rows", inputs, out)
            if calls[0] == 6:
                function("write_at")((1,), (1,), (out["y"], np.int64(1 << 40)))

    return run


@cheat("state left behind", "rows", CUDA, harmless="the pool has it for the next kernel, and the harness empties it")
def fills_the_pool(inputs: Arrays, out: Arrays) -> Run:
    """Allocates 8 GB in its first call, and frees them."""
    import cupy

    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] == 1:
            cupy.empty(8 << 30, np.uint8)
        write("rows", inputs, out)

    return run


@cheat("state left behind", "rows", CUDA, harmless="its own times are right; the process is replaced after it")
def keeps_nearly_all_memory(inputs: Arrays, out: Arrays) -> Run:
    """The next kernel of its process would have none."""
    import cupy

    if not any(isinstance(one, cupy.ndarray) for one in _KEPT):
        free, _ = cupy.cuda.runtime.memGetInfo()
        _KEPT.append(cupy.empty(free - (600 << 20), np.uint8))
    return lambda: write("rows", inputs, out)
