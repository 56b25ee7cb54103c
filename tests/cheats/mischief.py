"""Cheats that touch what is not theirs: memory, the harness, the process and those who come after them."""

from __future__ import annotations

import ctypes
import gc
import locale
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from opgauge.ops import find_op
from opgauge.ops._core import registry
from tests.cheats.catalogue import Run, cheat, write

Arrays = dict[str, Any]
SECONDS = 600


def beyond(array: Any, nbytes: int) -> Any:
    """One byte at a distance from the end of an array; before its start where that is negative."""
    address = array.ctypes.data + (array.nbytes if nbytes >= 0 else 0) + nbytes
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))


def misbehaves(family: str, name: str, act: Any) -> None:
    """Register a cheat that computes what it should, and acts besides."""

    def bind(inputs: Arrays, out: Arrays) -> Run:
        def run() -> None:
            write("rows", inputs, out)
            act(inputs, out)

        return run

    bind.__name__ = name
    cheat(family, "rows")(bind)


def change_and_restore(inputs: Arrays, _: Arrays) -> None:
    """Uses an input as scratch memory."""
    kept = inputs["x"][0, 0]
    inputs["x"][0, 0] = 0
    inputs["x"][0, 0] = kept


def replace_clock(_: Arrays, __: Arrays) -> None:
    """A clock of the timer that runs at half the speed."""
    timer: Any = import_module("opgauge.harness.measure.cpu")
    begun = time.perf_counter_ns()
    timer.perf_counter_ns = lambda: begun + (time.perf_counter_ns() - begun) // 2


def replace_time_module(_: Arrays, __: Arrays) -> None:
    module: Any = time
    module.perf_counter_ns = lambda: 0


def replace_checker(_: Arrays, __: Arrays) -> None:
    attempt: Any = import_module("opgauge.harness.worker.attempt")
    attempt.has_bits = lambda *_: True


def replace_method(_: Arrays, __: Arrays) -> None:
    audit: Any = import_module("opgauge.harness.worker.audit")
    audit.Audit.after = lambda *_: None


def replace_bytecode(_: Arrays, __: Arrays) -> None:
    """The code of a function of the checker, in place."""
    verify: Any = import_module("opgauge.harness.worker.verify")
    verify.check.__code__ = (lambda outputs, expected, relaxed=1.0: None).__code__


def relax_constant(_: Arrays, __: Arrays) -> None:
    verify: Any = import_module("opgauge.harness.worker.verify")
    verify.SHARE_OF_ULP = 1e6


def fork(_: Arrays, __: Arrays) -> None:
    """The child goes on as if it were the worker."""
    os.fork()


def fork_and_die(_: Arrays, __: Arrays) -> None:
    """The child goes on, the worker ends."""
    if os.fork():
        os._exit(0)


def fork_by_libc(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).fork()


def leave_child(_: Arrays, __: Arrays) -> None:
    if not _CHILDREN:  # one is enough: a trial has hundreds of calls
        _CHILDREN.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))


_CHILDREN: list[subprocess.Popen[bytes]] = []


def exit_now(_: Arrays, __: Arrays) -> None:
    os._exit(0)


def raise_exit(_: Arrays, __: Arrays) -> None:
    raise SystemExit


def kill_itself(_: Arrays, __: Arrays) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def close_pipes(_: Arrays, __: Arrays) -> None:
    os.closerange(3, 64)


def close_standard_streams(_: Arrays, __: Arrays) -> None:
    os.closerange(0, 3)


def replace_stream(_: Arrays, __: Arrays) -> None:
    sys.stdout = None


def limit_files(_: Arrays, __: Arrays) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


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
    os.environ["OMP_NUM_THREADS"] = "1"


def change_folder(_: Arrays, __: Arrays) -> None:
    os.chdir("/")


def silence_numpy(_: Arrays, __: Arrays) -> None:
    np.seterr(all="raise")


def limit_numba(_: Arrays, __: Arrays) -> None:
    import numba

    numba.set_num_threads(1)


def keep_thread(_: Arrays, __: Arrays) -> None:
    """A thread that burns the processor after the call."""
    end = time.monotonic() + SECONDS

    def burn() -> None:
        while time.monotonic() < end:
            pass

    threading.Thread(target=burn, daemon=True).start()


def trace(_: Arrays, __: Arrays) -> None:
    """Every later call is traced, and slower."""
    sys.setprofile(lambda *_: None)


def replace_numpy_function(_: Arrays, __: Arrays) -> None:
    """A function of NumPy that baselines use, and that stays replaced."""
    numpy: Any = np
    numpy.sum = partial(np.sum)


def replace_module(_: Arrays, __: Arrays) -> None:
    """Later imports find nothing."""
    modules: dict[str, Any] = sys.modules
    modules["json"] = None


def replace_bound(_: Arrays, __: Arrays) -> None:
    """What outputs are judged by, in the definition of the op."""
    op = find_op("p_norm")
    object.__setattr__(op, "bound", lambda *_: {"y": 1e9})


def replace_rival(_: Arrays, __: Arrays) -> None:
    """The kernel that this one is compared with becomes slower."""
    for name, found in list(registry._KERNELS.items()):
        if name.implementation == "baseline":
            function = found.function
            slowed = partial(_slowed, function)
            object.__setattr__(found, "function", slowed)


def _slowed(function: Any, **given: Any) -> Any:
    time.sleep(1e-4)
    return function(**given)


def add_collector_callback(_: Arrays, __: Arrays) -> None:
    gc.callbacks.append(lambda *_: None)


def start_timer(_: Arrays, __: Arrays) -> None:
    """The process ends long after the call."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)


def turn_warnings_into_errors(_: Arrays, __: Arrays) -> None:
    warnings.simplefilter("error")


def change_locale(_: Arrays, __: Arrays) -> None:
    locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C")


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


ACTS: dict[str, dict[str, Any]] = {
    "writing outside": {
        "writes_past_the_end": lambda _, out: beyond(out["y"], 0).__setitem__(0, 1),
        "writes_256_bytes_past": lambda _, out: beyond(out["y"], 300).__setitem__(0, 1),
        "writes_a_page_past": lambda _, out: beyond(out["y"], 4200).__setitem__(0, 1),
        "writes_before_the_start": lambda _, out: beyond(out["y"], -8).__setitem__(0, 1),
    },
    "changing inputs": {
        "changes_an_input": lambda inputs, _: inputs["x"].__setitem__((5, 5), 1),
        "changes_and_restores": change_and_restore,
    },
    "touching timer or checker": {
        act.__name__: act
        for act in (
            replace_clock,
            replace_time_module,
            replace_checker,
            replace_method,
            replace_bytecode,
            relax_constant,
            replace_numpy_function,
            replace_bound,
            replace_rival,
        )
    },
    "process": {
        act.__name__: act
        for act in (
            fork,
            fork_and_die,
            fork_by_libc,
            leave_child,
            exit_now,
            raise_exit,
            kill_itself,
            close_pipes,
            close_standard_streams,
            replace_stream,
            limit_files,
        )
    },
    "state left behind": {
        act.__name__: act
        for act in (
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
        )
    },
}
for _family, _acts in ACTS.items():
    for _name, _act in _acts.items():
        misbehaves(_family, _name, _act)
