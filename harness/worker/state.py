"""State of a process that a kernel may change, at the expense of later trials.

`observe` records the state before a trial, `restore` restores it afterwards and reports changes. A change that cannot
be undone (code of the harness, hooks, child processes) makes the process unfit for further trials. Threads are judged
by `left_threads`.
"""

from __future__ import annotations

import gc
import locale
import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.harness.worker.child_processes import changed_children, child_processes
from opgauge.harness.worker.device_settings import device_settings, put_back_device
from opgauge.harness.worker.environment_variables import (
    changed_environment,
    environment,
    put_back_environment,
)
from opgauge.harness.worker.import_hooks import changed_import_hooks, import_hooks
from opgauge.harness.worker.inspection import Inspection
from opgauge.harness.worker.library_settings import (
    blas_threads,
    numba_threads,
    put_back_blas,
    put_back_numba,
)
from opgauge.harness.worker.loaded_code import (
    changed_code,
    changed_modules,
    code,
    definitions,
    hooks,
    tables,
)
from opgauge.harness.worker.native_code import changed_native_code, false_clocks, native_hooks, written_code
from opgauge.harness.worker.process_settings import (
    changed_settings,
    changed_threads,
    other_threads,
    put_back_settings,
    settings,
)
from opgauge.harness.worker.restrictions import changed_restrictions, restrictions
from opgauge.harness.worker.rounding import put_back_rounding, rounding
from opgauge.harness.worker.signal_handlers import Handler, changed_handlers, put_back_handlers, signal_handlers
from opgauge.harness.worker.torch_settings import changed_torch, fresh_torch, put_back_torch, torch_state


@dataclass(frozen=True)
class ProcessState:
    """State of a process that results and times depend on."""

    affinity: frozenset[int]
    handlers: Mapping[int, Handler]
    environment: Mapping[str, str]
    folder: str
    descriptors: Mapping[int, tuple[int, int, bool]]
    streams: tuple[int, ...]
    numpy_errors: Mapping[str, Any]
    collecting: tuple[bool, tuple[int, ...]]
    switch_s: float
    recursion: int
    numba_threads: int
    torch_state: Mapping[str, Any] | None
    blas_threads: tuple[tuple[str, int], ...]
    rounding: tuple[float, ...]
    code: Inspection
    tables: Inspection
    children: frozenset[int]
    hooks: tuple[int, ...]
    import_hooks: tuple[Any, ...]
    priority: int
    limits: tuple[tuple[int, int], ...]
    callbacks: tuple[int, ...]
    timers: tuple[bool, ...]
    warnings: tuple[Any, ...]
    locale: str
    scheduling: int
    modules: Mapping[str, int]
    definitions: Inspection
    settings: Mapping[str, Any]
    device: Mapping[str, Any]
    restrictions: Mapping[str, str]
    native_hooks: tuple[int, ...]
    written_code: Mapping[str, tuple[int, int]]
    false_clocks: tuple[str, ...]
    threads: Mapping[int, tuple[Any, ...]]


def observe() -> ProcessState:
    """The present state of this process."""
    return ProcessState(
        affinity=frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(),
        handlers=signal_handlers(),
        environment=environment(),
        folder=_folder(),
        descriptors=_descriptors(),
        streams=tuple(map(id, (sys.stdin, sys.stdout, sys.stderr))),
        numpy_errors=dict(np.geterr()),
        collecting=(gc.isenabled(), gc.get_threshold()),
        switch_s=sys.getswitchinterval(),
        recursion=sys.getrecursionlimit(),
        numba_threads=numba_threads(),
        torch_state=torch_state(),
        blas_threads=blas_threads(),
        rounding=rounding(),
        code=code(),
        tables=tables(),
        children=child_processes(),
        hooks=hooks(),
        import_hooks=import_hooks(),
        priority=os.getpriority(os.PRIO_PROCESS, 0),
        limits=_limits(),
        callbacks=_callbacks(),
        timers=tuple(
            signal.getitimer(one)[0] > 0 for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ),
        warnings=tuple(warnings.filters),
        locale=locale.setlocale(locale.LC_ALL),
        scheduling=os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else 0,
        modules={name: id(module) for name, module in list(sys.modules.items())},
        definitions=definitions(),
        settings=settings(),
        device=device_settings(),
        restrictions=restrictions(),
        native_hooks=native_hooks(),
        written_code=written_code(),
        false_clocks=false_clocks(),
        threads=other_threads(),
    )


@dataclass(frozen=True)
class Damage:
    """Changes by a trial, in words; empty without any.

    is_lasting: they could not be undone. after: the state if nothing had to be undone.
    """

    text: str = ""
    is_lasting: bool = False
    after: ProcessState | None = None


def restore(before: ProcessState, ignored: Collection[str] = ()) -> Damage:
    """Undo changes since `before`. ignored: fields of ProcessState that may change."""
    recursion = sys.getrecursionlimit()
    if recursion < before.recursion:
        sys.setrecursionlimit(before.recursion)  # else `observe` may not be able to run
    after = replace(observe(), recursion=recursion)
    changes, lasting, is_same = [], False, True
    for name, (text, put_back) in _REPAIRS.items():
        old, new = getattr(before, name), getattr(after, name)
        if old is None and new is not None and name in _LATER:
            old = _LATER[name](new)
        if old == new:
            continue
        is_same = is_same and put_back is None
        detail = "" if name in ignored else text(old, new) if callable(text) else text
        if not detail:
            if put_back is not None:
                with suppress(Exception):
                    put_back(old)
            continue
        changes.append(detail)
        if put_back is None:
            lasting = True
            continue
        with suppress(Exception):
            put_back(old)
        lasting = lasting or name in _DOUBTFUL
    return Damage("; ".join(changes), lasting, after if is_same else None)


def _changed_warnings(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    """Filters that raise; libraries add some that ignore."""
    return "turned warnings into errors" if any(one[0] == "error" for one in new if one not in old) else ""


def _callbacks() -> tuple[int, ...]:
    """Callbacks of the garbage collector but those of libraries, which may be imported within a trial."""
    found = [one for one in gc.callbacks if str(getattr(one, "__module__", "")).partition(".")[0] not in LIBRARIES]
    return tuple(map(id, found))


def _stop_timers(_: Any) -> None:
    for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(one, 0)


def _folder() -> str:
    with suppress(OSError):
        return str(Path.cwd())
    return ""


def _descriptors() -> dict[int, tuple[int, int, bool]]:
    """Device and inode of the standard streams and of pipes, and whether they wait.

    Another process that has them open could write to the parent.
    """
    found = {}
    for number in range(64):
        with suppress(OSError):
            status = os.fstat(number)
            if number <= 2 or (status.st_mode & 0o170000) == 0o010000:
                found[number] = (status.st_dev, status.st_ino, os.get_blocking(number))
    return found


def _put_back_waiting(old: Mapping[int, tuple[int, int, bool]]) -> None:
    """Let descriptors wait again, which the parent may share."""
    for number, (_, _, waits) in old.items():
        with suppress(OSError):
            os.set_blocking(number, waits)


def _limits() -> tuple[tuple[int, int], ...]:
    import resource

    kinds = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
    return tuple(map(resource.getrlimit, kinds))


def _put_back_collecting(old: tuple[bool, tuple[int, ...]]) -> None:
    (gc.enable if old[0] else gc.disable)()
    gc.set_threshold(*old[1])


LIBRARIES = ("jax", "torch", "cupy", "numba", "tensorflow", "triton")
"""Packages that may install callbacks as they are imported."""
_Text = str | Callable[[Any, Any], str]
_LATER: Mapping[str, Callable[[Any], Any]] = {"torch_state": fresh_torch}
"""Functions that return the state of libraries before a trial in which they were imported, from that after it."""
_DOUBTFUL = ("blas_threads", "descriptors", "torch_state")
"""Changes after which the process is replaced even if they were undone."""
_REPAIRS: dict[str, tuple[_Text, Callable[[Any], Any] | None]] = {
    "affinity": ("changed the CPUs that the process may run on", lambda old: os.sched_setaffinity(0, old)),
    "handlers": (changed_handlers, put_back_handlers),
    "environment": (changed_environment, put_back_environment),
    "folder": ("changed the working directory", os.chdir),
    "descriptors": (
        lambda old, new: (
            "closed, replaced or changed standard streams or the worker's pipes" if old.items() - new.items() else ""
        ),
        _put_back_waiting,
    ),
    "streams": ("replaced sys.stdin, sys.stdout or sys.stderr", None),
    "numpy_errors": ("changed NumPy's error handling", lambda old: np.seterr(**old)),
    "collecting": ("changed the garbage collector's settings", _put_back_collecting),
    "switch_s": ("changed the interpreter's switch interval", sys.setswitchinterval),
    "recursion": (lambda old, new: "lowered the recursion limit" if new < old else "", sys.setrecursionlimit),
    "numba_threads": ("changed the number of Numba's threads", put_back_numba),
    "torch_state": (changed_torch, put_back_torch),
    "blas_threads": (
        lambda old, new: "changed the number of BLAS or OpenMP threads" if set(old) - set(new) else "",
        put_back_blas,
    ),
    "rounding": ("changed the rounding mode or flushes subnormal numbers to zero", lambda _: put_back_rounding()),
    "code": (changed_code, None),
    "tables": (changed_code, None),
    "children": (changed_children, None),
    "hooks": ("replaced a hook of the interpreter", None),
    "import_hooks": (changed_import_hooks, None),
    "priority": ("changed the process' priority", None),
    "limits": ("changed limits of the process' resources", None),
    "callbacks": ("changed callbacks of the garbage collector", None),
    "timers": (lambda _, new: "started a timer of the process" if any(new) else "", _stop_timers),
    "warnings": (_changed_warnings, None),
    "locale": ("changed the locale", lambda old: locale.setlocale(locale.LC_ALL, old)),
    "scheduling": ("changed the process' scheduling policy", None),
    "modules": (changed_modules, None),
    "definitions": (changed_code, None),
    "settings": (changed_settings, put_back_settings),
    "device": (lambda *_: "", put_back_device),
    "threads": (changed_threads, None),
    "restrictions": (changed_restrictions, None),
    "native_hooks": ("set a hook of the interpreter in C", None),
    "written_code": (changed_native_code, None),
    "false_clocks": ("changed a clock", None),
}
"""Description of each change, and the function that undoes it; None: it cannot be undone."""
