"""Settings of a process that a kernel may change, each read and restored by one function.

Later kernels would be slower without large pages, and fail with a narrow file mode mask.
"""

from __future__ import annotations

import ctypes
import decimal
import faulthandler
import gc
import os
import signal
import sys
import threading
import tracemalloc
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PR_SET_TIMERSLACK, PR_GET_TIMERSLACK, PR_SET_THP_DISABLE, PR_GET_THP_DISABLE = 29, 30, 41, 42
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 37, 38
"""Options of prctl."""
SET_ALLOCATOR, GET_ALLOCATOR = 304, 305
"""Numbers of NumPy's functions PyDataMem_SetHandler and PyDataMem_GetHandler in the table of its C interface."""
PROCESS = Path("/proc/self")
"""Folder of Linux with the state of this process."""
LOCKED_KB = 1024
"""Memory in KB that libraries may lock, which keep secrets."""
NUMBA = ("OPT", "DISABLE_JIT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX")
"""Options of Numba's compiler; not its features of the CPU, which kernels choose when they are first compiled."""


class ProcessSetting(NamedTuple):
    """Function that reads a setting, and one that restores it."""

    read: Callable[[], Any]
    put_back: Callable[[Any], Any]


def settings() -> dict[str, Any]:
    """Present values by name."""
    return {name: setting.read() for name, setting in SETTINGS.items()}


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names of the settings that differ; libraries may add folders to the import path."""
    names = [name for name, value in old.items() if value is not None and new[name] != value]
    if PATH in names and _within(new[PATH], old[PATH]) == old[PATH]:
        names.remove(PATH)
    return f"changed {', '.join(names)}" if names else ""


def put_back_settings(old: Mapping[str, Any]) -> None:
    """Restore all of them."""
    for name, value in old.items():
        if value is not None:
            with suppress(OSError, ValueError):
                SETTINGS[name].put_back(value)


@cache
def c_library() -> Any:
    """The C library; None on other systems than Linux."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def other_threads() -> dict[int, tuple[Any, ...]]:
    """CPUs, priority and scheduling policy of each thread but the main one: those of pools work for later kernels."""
    found: dict[int, tuple[Any, ...]] = {}
    with suppress(OSError):
        for task in (PROCESS / "task").iterdir():
            thread = int(task.name)
            with suppress(OSError):  # it has ended
                if thread != os.getpid():
                    priority = os.getpriority(os.PRIO_PROCESS, thread)
                    found[thread] = os.sched_getaffinity(thread), priority, os.sched_getscheduler(thread)
    return found


def changed_threads(old: Mapping[int, tuple[Any, ...]], new: Mapping[int, tuple[Any, ...]]) -> str:
    """Text about threads that exist in both states and differ."""
    is_changed = any(old[thread] != state for thread, state in new.items() if thread in old)
    return "changed the CPUs, the priority or the scheduling of other threads" if is_changed else ""


def _file_mode_mask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _control(option: int, value: int = 0) -> int:
    """Value of an option of prctl; -1 where the system has none."""
    library = c_library()
    return -1 if library is None else int(library.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _put_back_tracebacks(old: bool) -> None:  # noqa: FBT001  called with the value that was read
    (faulthandler.enable if old else faulthandler.disable)()


def _is_memory_locked() -> bool:
    """Whether much memory is kept from being written to disk: pages that are allocated later may be too."""
    with suppress(OSError, IndexError):
        status = (PROCESS / "status").read_text(encoding="utf-8", errors="replace")
        return int(status.split("VmLck:")[1].split()[0]) > LOCKED_KB
    return False


def _put_back_locks(old: bool) -> None:  # noqa: FBT001  called with the value that was read
    if not old and c_library() is not None:
        c_library().munlockall()


def _put_back_path(old: list[str]) -> None:
    sys.path[:] = old


def _numpys_large_pages() -> bool:
    """Whether NumPy asks for large pages; the function that sets it returns the last value."""
    enabled: bool = _ask_for_large_pages(True)
    _ask_for_large_pages(enabled)
    return enabled


def _ask_for_large_pages(wanted: bool) -> Any:  # noqa: FBT001  called with the value that was read
    """Let NumPy ask the system for large pages or not; returns whether it did."""
    return getattr(sys.modules.get("numpy._core.multiarray"), "_set_madvise_hugepage", bool)(wanted)


@cache
def _numpys_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """NumPy's C functions that read and set its allocator."""
    table = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]  # noqa: SLF001
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )(table, None)
    functions = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))
    return (
        ctypes.PYFUNCTYPE(ctypes.py_object)(functions[GET_ALLOCATOR]),
        ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[SET_ALLOCATOR]),
    )


def _numpys_allocator() -> Any:
    """The object that describes NumPy's allocator."""
    return _numpys_functions()[0]()


def _put_back_allocator(old: Any) -> None:
    _numpys_functions()[1](old)


def _numba_settings() -> dict[str, Any] | None:
    """Options of Numba's compiler and of its parallel loops; None if it is not loaded."""
    numba: Any = sys.modules.get("numba")
    if not hasattr(numba, "get_parallel_chunksize"):
        return None
    return {name: getattr(numba.config, name) for name in NUMBA} | {"chunk": numba.get_parallel_chunksize()}


def _put_back_numba(old: Mapping[str, Any]) -> None:
    numba: Any = sys.modules["numba"]
    for name in NUMBA:
        setattr(numba.config, name, old[name])
    numba.set_parallel_chunksize(old["chunk"])


def _put_back_tracing(old: bool) -> None:  # noqa: FBT001  called with the value that was read
    (tracemalloc.start if old else tracemalloc.stop)()


def _put_back_mask(old: Collection[signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _wakeup_descriptor() -> int:
    """The descriptor to which the interpreter writes the number of each signal; -1 for none, and in other threads.

    The function that sets it returns the last value.
    """
    found = -1
    with suppress(ValueError, OSError):
        found = signal.set_wakeup_fd(-1)
        if found >= 0:
            signal.set_wakeup_fd(found)
    return found


def _within(values: list[str], chosen: list[str]) -> list[str]:
    return [one for one in values if one in chosen]


PATH = "the import path"
"""Name of a setting that libraries extend."""
SETTINGS: Mapping[str, ProcessSetting] = {
    "the file mode mask": ProcessSetting(_file_mode_mask, os.umask),
    PATH: ProcessSetting(lambda: list(sys.path), _put_back_path),
    "decimal precision": ProcessSetting(
        lambda: decimal.getcontext().prec, lambda old: setattr(decimal.getcontext(), "prec", old)
    ),
    "the longest number in text": ProcessSetting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "the stack size of threads": ProcessSetting(threading.stack_size, threading.stack_size),
    "tracebacks of crashes": ProcessSetting(faulthandler.is_enabled, _put_back_tracebacks),
    "the locking of memory": ProcessSetting(_is_memory_locked, _put_back_locks),
    "the loading of libraries": ProcessSetting(
        getattr(sys, "getdlopenflags", bool), getattr(sys, "setdlopenflags", lambda _: None)
    ),
    "the use of large pages": ProcessSetting(
        lambda: _control(PR_GET_THP_DISABLE), lambda old: _control(PR_SET_THP_DISABLE, old)
    ),
    "the resolution of timers": ProcessSetting(
        lambda: _control(PR_GET_TIMERSLACK), lambda old: _control(PR_SET_TIMERSLACK, old)
    ),
    "the tracing of allocations": ProcessSetting(tracemalloc.is_tracing, _put_back_tracing),
    "debugging of the garbage collector": ProcessSetting(gc.get_debug, gc.set_debug),
    "blocked signals": ProcessSetting(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), _put_back_mask),
    "the descriptor of signals": ProcessSetting(_wakeup_descriptor, signal.set_wakeup_fd),
    "NumPy's use of large pages": ProcessSetting(_numpys_large_pages, _ask_for_large_pages),
    "NumPy's allocator": ProcessSetting(_numpys_allocator, _put_back_allocator),
    "Numba's options": ProcessSetting(_numba_settings, _put_back_numba),
}
"""Settings by name."""
