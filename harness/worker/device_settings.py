"""Settings of a device and of its libraries that a kernel may change for later ones; all are restored silently.

They are read only once this process has a timer of a device: reading them would create a CUDA context.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

LIMITS, PERSISTING = (0, 1, 2, 6), 6
"""Limits of CUDA: stack, buffer of printf, heap, and the part of the cache that is set aside."""
CACHE_WINDOW, ATTRIBUTE_WORDS = 1, 8
"""The driver's attribute of streams for a window of addresses that stay in the cache, and its 64-bit words."""
LEAST_FREE = 1 / 8
"""Share of a device's memory that must be free after a trial; otherwise the process is replaced."""


class DeviceSetting(NamedTuple):
    """Functions that read a setting and restore it."""

    read: Callable[[], Any]
    put_back: Callable[[Any], object]


def device_settings() -> dict[str, Any]:
    """Present values by name; empty while the process uses no device. Those of libraries that are not loaded miss."""
    found = {}
    for name, setting in (_settings() if _timers() else {}).items():
        with suppress(Exception):  # the device may be lost
            found[name] = setting.read()
    return found


def put_back_device(old: Mapping[str, Any]) -> None:
    """Restore the values that differ. A library that was loaded later has its defaults."""
    for name, setting in (_settings() if _timers() else {}).items():
        with suppress(Exception):
            wanted = old.get(name, DEFAULTS.get(name))
            if wanted is not None and setting.read() != wanted:
                setting.put_back(wanted)


def has_strange_context() -> bool:
    """Whether the current CUDA context of this thread is not the primary one of a device that is timed."""
    timers, current, primary = _timers(), ctypes.c_void_p(), ctypes.c_void_p()
    with suppress(OSError, AttributeError):  # another system, or an old driver
        driver = ctypes.CDLL("libcuda.so.1") if timers else None
        if driver is None or driver.cuCtxGetCurrent(ctypes.byref(current)) or not current.value:
            return False  # none is current, or the device is lost
        for timer in timers:
            if driver.cuDevicePrimaryCtxRetain(ctypes.byref(primary), timer.index):
                return False
            driver.cuDevicePrimaryCtxRelease_v2(timer.index)
            if primary.value == current.value:
                return False
        return True
    return False


def is_exhausted() -> bool:
    """Whether hardly any memory of the device is left, after all of its work has ended and pools are empty."""
    for timer in _timers():
        with suppress(Exception):
            timer.rest()
        with suppress(Exception):
            free, total = sys.modules["cupy"].cuda.runtime.memGetInfo()
            if free < LEAST_FREE * total:
                sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
                if "torch" in sys.modules:
                    sys.modules["torch"].cuda.empty_cache()
                free, total = sys.modules["cupy"].cuda.runtime.memGetInfo()
            if free < LEAST_FREE * total:
                return True
    return False


def _timers() -> list[Any]:
    module = sys.modules.get("opgauge.harness.measure.cuda")
    return list(module.CudaTimer.made) if module is not None and "cupy" in sys.modules else []


def _settings() -> dict[str, DeviceSetting]:
    """The settings of loaded libraries."""
    cupy: Any = sys.modules["cupy"]
    core, runtime, pool = cupy._core, cupy.cuda.runtime, cupy.get_default_memory_pool()  # noqa: SLF001
    found = {
        "allocator": DeviceSetting(cupy.cuda.get_allocator, cupy.cuda.set_allocator),
        "limit of the pool": DeviceSetting(pool.get_limit, lambda old: pool.set_limit(size=old)),
        "routine accelerators": DeviceSetting(core.get_routine_accelerators, core.set_routine_accelerators),
        "reduction accelerators": DeviceSetting(core.get_reduction_accelerators, core.set_reduction_accelerators),
    }
    for number in LIMITS:
        found[f"limit {number}"] = DeviceSetting(
            lambda number=number: runtime.deviceGetLimit(number),  # type: ignore[misc]
            lambda old, number=number: _set_limit(number, old),  # type: ignore[misc]
        )
    cublas: Any = sys.modules.get("cupy_backends.cuda.libs.cublas")
    if cublas is not None:
        handle = cupy.cuda.device.get_cublas_handle()
        found["math mode"] = DeviceSetting(
            lambda: cublas.getMathMode(handle), lambda old: cublas.setMathMode(handle, old)
        )
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "backends") and torch.cuda.is_initialized():
        for name in ("enabled", "benchmark", "deterministic"):
            found[f"torch.backends.cudnn.{name}"] = DeviceSetting(
                lambda name=name: getattr(torch.backends.cudnn, name),  # type: ignore[misc]
                lambda old, name=name: setattr(torch.backends.cudnn, name, old),  # type: ignore[misc]
            )
        share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if share is not None:
            found["torch's share"] = DeviceSetting(share, torch.cuda.set_per_process_memory_fraction)
    return found


def _set_limit(number: int, value: int) -> None:
    """Set a limit of CUDA; one of the cache also ends windows that streams have, and what they keep there."""
    sys.modules["cupy"].cuda.runtime.deviceSetLimit(number, value)
    if number == PERSISTING:
        driver, nothing = ctypes.CDLL("libcuda.so.1"), (ctypes.c_uint64 * ATTRIBUTE_WORDS)()
        for timer in _timers():
            driver.cuStreamSetAttribute(ctypes.c_void_p(timer.stream_handle), CACHE_WINDOW, nothing)
        driver.cuCtxResetPersistingL2Cache()


DEFAULTS: Mapping[str, Any] = {
    "math mode": 0,
    "torch.backends.cudnn.enabled": True,
    "torch.backends.cudnn.benchmark": False,
    "torch.backends.cudnn.deterministic": False,
    "torch's share": 1.0,
}
"""Values of libraries that a trial has loaded."""
