"""Cheats that touch what is not theirs: memory, the harness and the process; `lasting` has those that leave traces."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from opgauge.ops import find_op
from opgauge.ops._core import registry
from tests.cheats.catalogue import Run, cheat, write

Arrays = dict[str, Any]


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


def relax_table(_: Arrays, __: Arrays) -> None:
    """An entry of a table of constants."""
    verify: Any = import_module("opgauge.harness.worker.verify")
    verify._TINIEST["float32"] = 1e30


def replace_property(_: Arrays, __: Arrays) -> None:
    """A property by which inputs would not change."""
    attempt: Any = import_module("opgauge.harness.worker.attempt")
    attempt.Attempt.captures_inputs = property(lambda _: True)


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


def leave_orphan(_: Arrays, __: Arrays) -> None:
    """A process that leaves its parent and its session, and works on."""
    if not _CHILDREN:
        command = [sys.executable, "-c", "import os\nos.fork() and os._exit(0)\nos.setsid()\nwhile True: pass"]
        _CHILDREN.append(subprocess.Popen(command))
        _CHILDREN[0].wait()


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


def replace_numpy_function(_: Arrays, __: Arrays) -> None:
    """A function of NumPy that baselines use, and that stays replaced."""
    numpy: Any = np
    numpy.sum = partial(np.sum)


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
            relax_table,
            replace_property,
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
            leave_orphan,
            exit_now,
            raise_exit,
            kill_itself,
            close_pipes,
            close_standard_streams,
            replace_stream,
            limit_files,
        )
    },
}
for _family, _acts in ACTS.items():
    for _name, _act in _acts.items():
        misbehaves(_family, _name, _act)
