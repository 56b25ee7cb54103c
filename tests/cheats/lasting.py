"""Cheats that change the state of the process, and leave it so for those that come after them."""

from __future__ import annotations

import builtins
import ctypes
import decimal
import faulthandler
import gc
import locale
import os
import resource
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from opgauge.harness.worker.process_settings import PR_SET_THP_DISABLE, PR_SET_TIMERSLACK
from tests.cheats.mischief import Arrays, misbehaves

SECONDS = 600
"""Longer than a trial takes."""
OTHER_COUNT = "2" if os.environ.get("OMP_NUM_THREADS") == "1" else "1"
OTHER_LOCALE = "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"
"""Values that the process does not begin with; no call sets back what another has set."""


def lower_recursion(_: Arrays, __: Arrays) -> None:
    sys.setrecursionlimit(sys.getrecursionlimit() - 1)


def least_recursion(_: Arrays, __: Arrays) -> None:
    """Leaves as few frames as the interpreter accepts."""
    limit = sys.getrecursionlimit()
    try:
        for less in range(limit, 0, -1):
            sys.setrecursionlimit(less)
    except RecursionError:
        return


def flush_to_zero(_: Arrays, __: Arrays) -> None:
    """Sets flush-to-zero and denormals-are-zero, as -ffast-math does."""
    library = ctypes.CDLL("libm.so.6")
    environment = (ctypes.c_uint8 * 32)()
    library.fegetenv(environment)
    word = ctypes.cast(ctypes.addressof(environment) + 28, ctypes.POINTER(ctypes.c_uint32))
    word[0] |= 0x8040
    library.fesetenv(environment)


def round_up(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL("libm.so.6").fesetround(0x800)


def narrow_affinity(_: Arrays, __: Arrays) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


def lower_priority(_: Arrays, __: Arrays) -> None:
    os.nice(1)


def set_handler(_: Arrays, __: Arrays) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)


def stop_collecting(_: Arrays, __: Arrays) -> None:
    gc.set_threshold(1)


def set_variable(_: Arrays, __: Arrays) -> None:
    os.environ["OMP_NUM_THREADS"] = OTHER_COUNT


def change_folder(_: Arrays, __: Arrays) -> None:
    os.chdir("/")


def silence_numpy(_: Arrays, __: Arrays) -> None:
    np.seterr(all="raise")


def limit_numba(_: Arrays, __: Arrays) -> None:
    import numba

    numba.set_num_threads(1)


def keep_thread(_: Arrays, __: Arrays) -> None:
    """A thread that burns the processor after the call; one is enough, each further one slows the others down."""
    if _BURNING:
        return
    end = time.monotonic() + SECONDS

    def burn() -> None:
        while time.monotonic() < end:
            pass

    _BURNING.append(threading.Thread(target=burn, daemon=True))
    _BURNING[0].start()


_BURNING: list[threading.Thread] = []


def trace(_: Arrays, __: Arrays) -> None:
    """Every later call is traced, and slower."""
    sys.setprofile(lambda *_: None)


def replace_module(_: Arrays, __: Arrays) -> None:
    """Later imports find nothing."""
    modules: dict[str, Any] = sys.modules
    modules["json"] = None


def add_collector_callback(_: Arrays, __: Arrays) -> None:
    gc.callbacks.append(lambda *_: None)


def start_timer(_: Arrays, __: Arrays) -> None:
    """The process ends long after the call."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)


def turn_warnings_into_errors(_: Arrays, __: Arrays) -> None:
    warnings.simplefilter("error")


def change_locale(_: Arrays, __: Arrays) -> None:
    locale.setlocale(locale.LC_ALL, OTHER_LOCALE)


def run_when_idle(_: Arrays, __: Arrays) -> None:
    """The process gets what other processes leave."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def profile_threads(_: Arrays, __: Arrays) -> None:
    threading.setprofile(lambda *_: None)


def monitor(_: Arrays, __: Arrays) -> None:
    """Python's own events, which slow down every later call."""
    with suppress(ValueError):
        sys.monitoring.use_tool_id(4, "cheat")
    sys.monitoring.set_events(4, sys.monitoring.events.PY_START)


def narrow_file_modes(_: Arrays, __: Arrays) -> None:
    os.umask(0o777)


def forget_import_path(_: Arrays, __: Arrays) -> None:
    sys.path[:] = sys.path[:1]


def lower_decimal_precision(_: Arrays, __: Arrays) -> None:
    decimal.getcontext().prec = 2


def shorten_numbers(_: Arrays, __: Arrays) -> None:
    sys.set_int_max_str_digits(700)


def hide_crashes(_: Arrays, __: Arrays) -> None:
    faulthandler.disable()


def refuse_large_pages(_: Arrays, __: Arrays) -> None:
    """Arrays that are allocated later have small pages."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def coarsen_timers(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 20_000_000, 0, 0, 0)


def set_native_handler(_: Arrays, __: Arrays) -> None:
    """Code in C can compute when a page of an output is first read; the interpreter knows nothing of it."""
    ctypes.CDLL(None).signal(signal.SIGUSR2, ctypes.c_void_p(1))


def limit_file_size(_: Arrays, __: Arrays) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def replace_builtin(_: Arrays, __: Arrays) -> None:
    namespace: Any = builtins
    namespace.sorted = partial(sorted)


def replace_linear_algebra(_: Arrays, __: Arrays) -> None:
    """Functions of NumPy's packages, which kernels use too."""
    algebra: Any = np.linalg
    algebra.norm = partial(np.linalg.norm)


def leave_autocast(_: Arrays, __: Arrays) -> None:
    """Later products of torch are in bfloat16, and wrong."""
    torch: Any = import_module("torch")
    if not torch.is_autocast_enabled("cpu"):
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()


def lower_precision_of_onednn(_: Arrays, __: Arrays) -> None:
    """Torch raises an exception if its older setting of precision is read then."""
    torch: Any = import_module("torch")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def run_compiled_functions_as_written(_: Arrays, __: Arrays) -> None:
    """Later peers that torch compiles are not compiled."""
    torch: Any = import_module("torch")
    torch.compiler.set_stance("force_eager")


for _act in (
    leave_autocast,
    lower_precision_of_onednn,
    run_compiled_functions_as_written,
    narrow_file_modes,
    forget_import_path,
    lower_decimal_precision,
    shorten_numbers,
    hide_crashes,
    refuse_large_pages,
    coarsen_timers,
    set_native_handler,
    limit_file_size,
    replace_builtin,
    replace_linear_algebra,
    flush_to_zero,
    round_up,
    narrow_affinity,
    lower_priority,
    set_handler,
    stop_collecting,
    set_variable,
    change_folder,
    silence_numpy,
    limit_numba,
    keep_thread,
    trace,
    lower_recursion,
    least_recursion,
    replace_module,
    add_collector_callback,
    start_timer,
    turn_warnings_into_errors,
    change_locale,
    run_when_idle,
    profile_threads,
    monitor,
):
    misbehaves("state left behind", _act.__name__, _act)
