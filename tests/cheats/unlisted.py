"""Cheats that change what was on no list: what judges outputs or runs rivals, limits of the process, shared outputs."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.ops._core import registry
from tests.cheats.catalogue import Run, cheat
from tests.cheats.mischief import Arrays, misbehaves

SET_PRIORITY, SET_PLACEMENT, SET_PARENT_SIGNAL, DROP_CAPABILITY, MERGE_PAGES = 251, 238, 1, 24, 67
"""Numbers of calls of Linux on x86-64, and options of prctl."""
IDLE, INTERLEAVED, CAPABILITY, OWN_MOUNTS = 3 << 13, 3, 19, 0x20000
"""Values of these."""
GAP_NS, REPEATED = 10_000, 12
"""Time between two calls of a sample, and more; and number of times that a call does its work."""


def relax_dtype(_: Arrays, __: Arrays) -> None:
    """Every output is near enough."""
    object.__setattr__(import_module("opgauge.ops").dtype_info("float32"), "epsilon", 1.0)


def relax_limits_of_numpy(_: Arrays, __: Arrays) -> None:
    """NumPy returns the same object to all who ask."""
    vars(np.finfo(np.float64))["tiny"] = 1.0


def relax_rounding_of_sums(_: Arrays, __: Arrays) -> None:
    """A function that bounds of errors call."""
    function: Any = import_module("opgauge.ops._core.axes").sum_units
    function.__code__ = (lambda *_, **__: 1e9).__code__


def relax_constant_of_op(_: Arrays, __: Arrays) -> None:
    module: Any = import_module("opgauge.ops.p_norm.op")
    module.HALF = 1e9


def replace_code_of_rival(_: Arrays, __: Arrays) -> None:
    function = _rival().function
    function.__code__ = function.__code__.replace(co_name="other")


def make_rival_use_memory(_: Arrays, __: Arrays) -> None:
    object.__setattr__(_rival(), "workspace", lambda *_: 1 << 26)


def _rival() -> Any:
    found = registry._KERNELS.items()
    return next(one for name, one in found if (name.op, name.implementation) == ("p_norm", "baseline"))


def leave_tuning(_: Arrays, __: Arrays) -> None:
    """Later kernels have other launch parameters."""
    if not _KEPT:
        _KEPT.append(import_module("opgauge.ops._core.tuning").override({"block": 1}))
        _KEPT[0].__enter__()


_KEPT: list[Any] = []


def shorten_samples(_: Arrays, __: Arrays) -> None:
    """A default value of a function of the harness; the first one is freed, so that another gets its number."""
    initialize: Any = import_module("opgauge.harness.measure.timer").Limits.__init__
    initialize.__defaults__ = (0.5, *initialize.__defaults__[1:])


def shorten_all_samples(_: Arrays, __: Arrays) -> None:
    settings: Any = import_module("opgauge.harness.settings").Settings
    settings.budget_s = 0.001


def read_files_last(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).syscall(SET_PRIORITY, 1, 0, IDLE)


def die_first(_: Arrays, __: Arrays) -> None:
    """The process is the first to end if memory is short."""
    Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def outlive_its_parent(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).prctl(SET_PARENT_SIGNAL, 0, 0, 0, 0)


def load_all_symbols(_: Arrays, __: Arrays) -> None:
    """Libraries that are loaded later find functions of others."""
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)


def lock_memory(_: Arrays, __: Arrays) -> None:
    """All memory that is allocated later is filled at once."""
    ctypes.CDLL(None).mlockall(3)


def scatter_memory(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).syscall(SET_PLACEMENT, INTERLEAVED, ctypes.byref(ctypes.c_ulong(1)), 64)


def renounce_a_capability(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).prctl(DROP_CAPABILITY, CAPABILITY, 0, 0, 0)


def leave_its_namespace(_: Arrays, __: Arrays) -> None:
    ctypes.CDLL(None).unshare(OWN_MOUNTS)


def wake_by_signals(_: Arrays, __: Arrays) -> None:
    """The interpreter writes to a file with each signal."""
    signal.set_wakeup_fd(_sink())


@cache
def _sink() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_NONBLOCK)


def act_on_failed_finalizers(_: Arrays, __: Arrays) -> None:
    """Later errors of finalizers run code of this kernel."""
    sys.unraisablehook = _do_nothing


def act_on_failed_threads(_: Arrays, __: Arrays) -> None:
    """Later errors of threads run code of this kernel."""
    threading.excepthook = _do_nothing


def _do_nothing(_: Any) -> None:
    """The hook."""


def restart_interrupted_calls(_: Arrays, __: Arrays) -> None:
    """The handler is the same; calls of the system go on after it, and end with an error no more."""
    signal.siginterrupt(signal.SIGINT, False)


class Finder:
    """Could find other modules than those of later kernels."""

    @staticmethod
    def find_spec(*_: Any) -> None:
        """Finds none."""


def find_modules_first(_: Arrays, __: Arrays) -> None:
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


def find_modules_of_a_folder(_: Arrays, __: Arrays) -> None:
    sys.path_importer_cache["/nowhere"] = Finder


def _in_a_row(least: int, *, looks: bool) -> Any:
    """Works in the first calls in a row, more than are made beside the samples, and skips the rest.

    looks: it does not skip inputs that have changed.
    """

    def bind(inputs: Arrays, out: Arrays) -> Run:
        last, number, left = [0], [0], [b""]

        def run() -> None:
            is_next = time.perf_counter_ns() - last[0] < GAP_NS
            number[0] = number[0] + 1 if is_next else 0
            if number[0] <= least or (looks and bytes(inputs["x"]) != left[0]):
                for _ in range(REPEATED):
                    np.sign(inputs["x"], out=out["out"])
                left[0] = bytes(inputs["x"])
            last[0] = time.perf_counter_ns()

        return run

    return bind


@cheat("skipping", "few-integers")
def skips_after_many_calls_in_a_row(inputs: Arrays, out: Arrays) -> Run:
    run: Run = _in_a_row(400, looks=False)(inputs, out)
    return run


@cheat("skipping", "few-integers")
def skips_what_is_unchanged_after_many_calls(inputs: Arrays, out: Arrays) -> Run:
    run: Run = _in_a_row(200, looks=True)(inputs, out)
    return run


@cheat("views", "equal-outputs")
def returns_one_array_for_two(inputs: Arrays, out: Arrays) -> Run:
    """Both gradients are equal."""
    del out

    def run() -> Any:
        half = inputs["dout"] * np.float32(0.5)
        return half, half

    return run


@cheat("views", "equal-outputs")
def returns_one_tensor_for_two(inputs: Arrays, out: Arrays) -> Run:
    torch: Any = import_module("torch")
    gradient = torch.from_numpy(inputs["dout"])
    del out

    def run() -> Any:
        half = gradient * 0.5
        return half, half

    return run


@cheat("views", "equal-outputs")
def returns_one_buffer_for_two(inputs: Arrays, out: Arrays) -> Run:
    def run() -> Any:
        np.multiply(inputs["dout"], np.float32(0.5), out=out["dx"])
        return out["dx"], out["dx"]

    return run


@cheat("views", "equal-outputs")
def returns_the_same_pages_for_two(inputs: Arrays, out: Arrays) -> Run:
    """Their pages have two addresses each."""
    nbytes, shape = out["dx"].nbytes, out["dx"].shape
    file = os.memfd_create("pages")
    os.ftruncate(file, nbytes)
    first, second = (np.frombuffer(mmap.mmap(file, nbytes), np.float32).reshape(shape) for _ in range(2))
    os.close(file)

    def run() -> Any:
        np.multiply(inputs["dout"], np.float32(0.5), out=first)
        return first, second

    return run


for _act in (
    relax_dtype,
    relax_limits_of_numpy,
    relax_rounding_of_sums,
    relax_constant_of_op,
    replace_code_of_rival,
    make_rival_use_memory,
    leave_tuning,
    shorten_samples,
    shorten_all_samples,
):
    misbehaves("touching timer or checker", _act.__name__, _act)
PRIVILEGED = (lock_memory, scatter_memory, renounce_a_capability, leave_its_namespace) if os.geteuid() == 0 else ()
"""Acts that containers or the system may refuse to others."""
for _act in (
    read_files_last,
    die_first,
    outlive_its_parent,
    load_all_symbols,
    wake_by_signals,
    act_on_failed_finalizers,
    act_on_failed_threads,
    restart_interrupted_calls,
    find_modules_first,
    find_modules_of_a_folder,
    *PRIVILEGED,
):
    misbehaves("state left behind", _act.__name__, _act)
