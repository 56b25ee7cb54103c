"""Native code that works beside the interpreter: its hooks, code of libraries that was written over, and clocks.

Code in C can set hooks that `sys` does not show, and write over functions: of the pages of a library's code, those that
were written are copies of their own, also when their bytes have been put back.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from opgauge.harness.worker.memory_map import PAGEMAP, mapped_ranges
from opgauge.harness.worker.process_settings import c_library
from opgauge.harness.worker.signal_handlers import is_compilers

LIBRARIES = ("[vdso]", "_ctypes.", "_multiarray_umath.", "ld-linux", "libc.", "libm.", "libpython", "python")
"""Start of the names of files whose code times and judges."""
PAGE, ENTRY, PRESENT, FROM_FILE = 4096, 8, np.uint64(1 << 63), np.uint64(1 << 61)
"""Bytes of a page and of its entry in the system's list, and bits of that: in memory, and not a copy of its own."""
STATE_BYTES, WORD = 256, ctypes.sizeof(ctypes.c_void_p)
"""Bytes of the interpreter's state of a thread in which its hooks are, and of an address."""
HOOKS = 4
"""Addresses in a row: of the functions and the objects by which a thread is profiled and traced."""
FRAME_FUNCTION = "_PyEval_EvalFrameDefault"
"""Name of the interpreter's own function that runs Python's code."""
CLOCK_CALLS = {"x86_64": 228, "aarch64": 113}
"""Number of the system's call that reads a clock, by architecture."""
NEAR_NS = 1_000_000
"""Largest difference in ns between a clock and the system's, beside the time between both readings."""
NANOSECONDS = 1_000_000_000
"""Nanoseconds of a second."""


def native_hooks() -> tuple[int, ...]:
    """Addresses of the functions that the interpreter calls beside or instead of its own; not those of compilers."""
    if sys.implementation.name != "cpython":
        return ()
    at = _place_of_hooks()
    hooks = () if at is None else tuple(_thread_state()[at : at + HOOKS])
    return (*hooks, _frame_function())


@cache
def _place_of_hooks() -> int | None:
    """Index of the first address that changes when a profiler is set: the order is the same in all versions."""
    if sys.getprofile() is not None:
        return None
    before = _thread_state()
    sys.setprofile(lambda *_: None)
    during = _thread_state()
    sys.setprofile(None)
    changed = [number for number, one in enumerate(before) if not one and during[number] > PAGE]
    return changed[0] if len(changed) > 1 and changed[1] == changed[0] + HOOKS // 2 else None


def _thread_state() -> list[int]:
    state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))()
    return list((ctypes.c_size_t * (STATE_BYTES // WORD)).from_address(state))


def _frame_function() -> int:
    """Address of the function that runs Python's code; 0 for one of a compiler's, or where none is told."""
    with suppress(AttributeError):
        interpreter = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyInterpreterState_Get", ctypes.pythonapi))()
        find = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            ("_PyInterpreterState_GetEvalFrameFunc", ctypes.pythonapi)
        )
        found = find(interpreter) or 0
        return 0 if found == _own_frame_function() or is_compilers(found) else found
    return 0


@cache
def _own_frame_function() -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, FRAME_FUNCTION), ctypes.c_void_p).value or 0


def written_code() -> dict[str, tuple[int, int]]:
    """Number of pages of code that are copies of their own, and of all, by library; none where no system tells."""
    found: dict[str, tuple[int, int]] = {}
    with suppress(OSError), PAGEMAP.open("rb", buffering=0) as pages:
        for one in mapped_ranges(only_code=True):
            name, count = one.file.name, (one.last - one.first) // PAGE
            if name.startswith(LIBRARIES):
                pages.seek(one.first // PAGE * ENTRY)
                entries = np.frombuffer(pages.read(count * ENTRY), np.uint64)
                own = int(np.count_nonzero((entries & (PRESENT | FROM_FILE)) == PRESENT))
                had = found.get(name, (0, 0))
                found[name] = had[0] + own, had[1] + count
    return found


def changed_native_code(old: Mapping[str, tuple[int, int]], new: Mapping[str, tuple[int, int]]) -> str:
    """Names of libraries whose code was written or replaced."""
    names = [name for name, counts in old.items() if new.get(name) != counts]
    return f"wrote over the code of {', '.join(names)}" if names else ""


def false_clocks() -> tuple[str, ...]:
    """Clocks of this process that tell another time than the system."""
    return tuple(name for name, (read, clock) in _clocks().items() if not _is_right(read, clock))


@cache
def _clocks() -> Mapping[str, tuple[Any, int]]:
    """The clocks of timers where the system's call is known: function and number."""
    if c_library() is None or platform.machine() not in CLOCK_CALLS:
        return {}
    clocks = {
        "perf_counter_ns": (time.perf_counter_ns, time.CLOCK_MONOTONIC),
        "process_time_ns": (time.process_time_ns, time.CLOCK_PROCESS_CPUTIME_ID),
    }
    return clocks if time.get_clock_info("perf_counter").implementation.endswith("(CLOCK_MONOTONIC)") else {}


def _is_right(read: Any, clock: int) -> bool:
    """Whether the system's time lies between two readings."""
    told = (ctypes.c_long * 2)()
    before = read()
    c_library().syscall(CLOCK_CALLS[platform.machine()], clock, told)
    after = read()
    return bool(before - NEAR_NS <= told[0] * NANOSECONDS + told[1] <= after + NEAR_NS)
