"""What a kernel leaves in its process: harmless changes are put back in silence, others are told."""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from opgauge.harness.errors import TreeError
from opgauge.harness.worker import process_settings, signal_handlers
from opgauge.harness.worker.loaded_code import keeping_code
from opgauge.harness.worker.rounding import rounding
from opgauge.harness.worker.state import observe, restore

UPWARD = 0x400 if platform.machine() == "aarch64" else 0x800
"""The C library's rounding mode towards infinity."""


def test_a_raised_recursion_limit_is_put_back_in_silence() -> None:
    """torch.compile raises it: nothing after it is slower or wrong."""
    before, limit = observe(), sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 500)
    assert not restore(before).text
    assert sys.getrecursionlimit() == limit


def test_the_lowest_recursion_limit_is_put_back() -> None:
    """The harness can look at the process even where no frame is left to a kernel's caller."""
    before, limit = observe(), sys.getrecursionlimit()
    with suppress(RecursionError):
        for less in range(limit, 0, -1):
            sys.setrecursionlimit(less)
    assert sys.getrecursionlimit() < limit
    assert "recursion" in restore(before).text
    assert sys.getrecursionlimit() == limit


def test_a_state_serves_again_if_nothing_was_put_back() -> None:
    """A library that was imported has changed no setting; variables that were put back are others by now."""
    before = observe()
    sys.modules["opgauge_planted"] = types.ModuleType("opgauge_planted")
    try:
        after = restore(before).after
        assert after is not None
        assert not restore(after).text
    finally:
        del sys.modules["opgauge_planted"]
    os.environ["_TORCHINDUCTOR_PLANTED"] = "1"
    assert restore(before).after is None


def test_variables_that_libraries_set_are_put_back_in_silence_and_others_are_told() -> None:
    """torch and its compiler set variables of their own."""
    before = observe()
    os.environ["_TORCHINDUCTOR_PLANTED"] = "1"
    assert not restore(before).text
    assert "_TORCHINDUCTOR_PLANTED" not in os.environ
    library = process_settings.c_library()
    if library is not None:  # as readline does, which debuggers import
        library.setenv(b"COLUMNS", b"80", 1)
        library.setenv(b"LINES", b"24", 1)
        assert not restore(before).text
    os.environ["OPGAUGE_PLANTED"] = "1"
    assert "OPGAUGE_PLANTED" in restore(before).text
    assert "OPGAUGE_PLANTED" not in os.environ


def test_modules_that_compilers_generate_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton loads the launcher of each kernel by one name that no import finds; another `json` is told."""
    monkeypatch.setitem(sys.modules, "__triton_launcher", types.ModuleType("__triton_launcher"))
    before = observe()
    sys.modules["__triton_launcher"] = types.ModuleType("__triton_launcher")
    assert not restore(before).text
    monkeypatch.setitem(sys.modules, "json", types.ModuleType("json"))
    assert "json" in restore(before).text
    monkeypatch.setitem(sys.modules, "json", json)


@pytest.mark.parametrize("name", ["sorted", "open"])
def test_imports_that_replace_functions_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could replace the clock before the harness has loaded it."""
    with pytest.raises(TreeError, match=f"importing its ops replaced builtins.{name}"), keeping_code():
        monkeypatch.setattr(builtins, name, partial(getattr(builtins, name)))


def test_handlers_that_imports_install_are_put_back() -> None:
    """A signal of a timer could compute after a call; what handles it in trials is a change by a kernel."""
    before = signal.getsignal(signal.SIGALRM)
    with keeping_code():
        signal.signal(signal.SIGALRM, lambda *_: None)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.skipif(sys.platform != "linux", reason="the mode has another name elsewhere")
def test_rounding_that_imports_set_is_put_back() -> None:
    """Libraries that are linked with `-ffast-math` change the processor's state as they are loaded."""
    before = rounding()
    with keeping_code():
        ctypes.CDLL("libm.so.6").fesetround(UPWARD)
        assert rounding() != before
    assert rounding() == before


def test_scalar_types_of_numpy_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for old versions of NumPy sets `np.bool = bool`, which times and judges nothing."""
    with keeping_code():
        monkeypatch.setattr(np, "bool", bool, raising=False)


def test_folders_may_be_added_to_the_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries do so; folders that vanish are told."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = observe()
    sys.path.insert(0, "/planted")
    assert not restore(before).text
    del sys.path[0]
    assert "the import path" in restore(before).text


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's handlers are read on Linux only")
def test_handlers_of_compilers_in_c_are_put_back_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM handles signals once Triton has compiled a kernel; a handler in other code is told."""
    library, before = ctypes.CDLL(None), observe()
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal(signal.SIGUSR2, ctypes.cast(library.getpid, ctypes.c_void_p))
    file = signal_handlers._file_of(signal_handlers.signal_handlers()[signal.SIGUSR2].address)
    assert "libc" in file.name
    assert "signal handlers: SIGUSR2" in restore(before).text
    assert observe().handlers == before.handlers
    library.signal(signal.SIGUSR2, ctypes.cast(library.getpid, ctypes.c_void_p))
    monkeypatch.setattr(signal_handlers, "COMPILERS", frozenset({file.parts[-1]}))
    assert not restore(before).text
    assert observe().handlers == before.handlers


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's handlers are read on Linux only")
def test_handlers_of_python_in_c_are_put_back_in_silence() -> None:
    """Debuggers, and CUDA's library for Python, import `readline`, which handles a signal in C."""
    code = (
        "from opgauge.harness.worker.signal_handlers import changed_handlers, signal_handlers\n"
        "old = signal_handlers()\n"
        "import readline\n"
        "print(old != signal_handlers(), repr(changed_handlers(old, signal_handlers())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "''"]


@pytest.mark.parametrize(
    ("owner", "name"), [("", "lerp"), ("nn.functional", "conv2d"), ("Tensor", "sum"), ("Tensor", "flatten")]
)
def test_replaced_functions_of_torch_are_told(owner: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers call them, and would be slower."""
    torch = pytest.importorskip("torch")
    found, before = attrgetter(owner)(torch) if owner else torch, observe()
    with monkeypatch.context() as within:
        within.setattr(found, name, partial(getattr(found, name)))
        assert f".{name}" in restore(before).text
    assert not restore(before).text


def test_functions_that_torch_replaces_itself_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiler puts a function of its own in place of `torch.manual_seed`."""
    torch = pytest.importorskip("torch")
    before = observe()
    monkeypatch.setattr(torch, "manual_seed", torch.random.seed)
    assert not restore(before).text


@pytest.mark.parametrize(("owner", "name"), [("numba", "njit"), ("numba.core.dispatcher.Dispatcher", "compile")])
def test_replaced_functions_of_numba_are_told(owner: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later kernels are compiled by them."""
    module, _, kind = owner.partition("dispatcher.")
    found: Any = import_module(f"{module}dispatcher" if kind else owner)
    found, before = getattr(found, kind) if kind else found, observe()
    monkeypatch.setattr(found, name, partial(getattr(found, name)))
    assert f"{owner}.{name}" in restore(before).text


@pytest.mark.skipif(sys.platform != "linux", reason="priorities belong to threads on Linux only")
def test_a_changed_priority_of_another_thread_is_told() -> None:
    """Threads of a pool work for later kernels too; a new thread may have any priority."""
    ended, numbers = threading.Event(), list[int]()

    def work() -> None:
        numbers.append(threading.get_native_id())
        ended.wait(60)

    begun = observe()
    thread = threading.Thread(target=work)
    thread.start()
    while not numbers:
        time.sleep(0.001)
    before = observe()
    os.setpriority(os.PRIO_PROCESS, numbers[0], 5)
    try:
        assert "other threads" in restore(before).text
        assert not restore(begun).text
    finally:
        ended.set()
        thread.join()
