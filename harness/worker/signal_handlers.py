"""Handlers of signals: the interpreter's, and the system's, which code in C changes without the interpreter."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opgauge.harness.worker.memory_map import mapped_ranges
from opgauge.harness.worker.process_settings import c_library

ACTION_BYTES, ADDRESS_BYTES = 256, ctypes.sizeof(ctypes.c_void_p)
"""Bytes that hold the C library's `struct sigaction`, and of the address with which it begins."""
MASK_BYTES, FLAGS_AT, FLAGS_BYTES = 8, ADDRESS_BYTES + 128, 4
"""Bytes of the signals that are blocked meanwhile, after the address; place of the flags, and their bytes."""
RESTORER = 0x04000000
"""Flag that the C library adds to each action that it sets."""
COMPILERS = frozenset(("triton", "torch", "llvmlite", "numba", "jaxlib", "cupy", "nvidia", "tensorflow"))
"""Packages with compilers whose libraries may handle signals."""


@dataclass(frozen=True)
class Handler:
    """The interpreter's handler of a signal, and the system's.

    address: of the system's handler. options: signals that it blocks, and flags. action: the system's action, whose
    unused bytes differ from reading to reading; empty where it cannot be read.
    """

    function: Any
    address: bytes
    options: tuple[bytes, int]
    action: bytes = field(compare=False)


def signal_handlers() -> dict[int, Handler]:
    """The present handler of each signal."""
    found = {}
    for number in signal.valid_signals():
        action = _action(number)
        mask = action[ADDRESS_BYTES : ADDRESS_BYTES + MASK_BYTES]
        flags = int.from_bytes(action[FLAGS_AT : FLAGS_AT + FLAGS_BYTES], sys.byteorder) & ~RESTORER
        found[int(number)] = Handler(signal.getsignal(number), action[:ADDRESS_BYTES], (mask, flags), action)
    return found


def changed_handlers(old: Mapping[int, Handler], new: Mapping[int, Handler]) -> str:
    """Text about changes, except the system's handlers by code of compilers or of Python.

    LLVM has some, which Triton loads, and `readline` one, which debuggers import.
    """
    changed = [number for number, one in new.items() if one != old[number]]
    if all(one.function == old[number].function for number, one in new.items()):
        changed = [
            number
            for number in changed
            if new[number].address == old[number].address or not _is_known(_file_of(new[number].address))
        ]
    names = {int(one): one.name for one in signal.Signals}
    listed = ", ".join(names.get(number, str(number)) for number in changed)
    return f"changed signal handlers: {listed}" if changed else ""


def _is_known(file: Path) -> bool:
    """Whether a file is a compiler's or Python's: the interpreter, its library, or a module of the standard library."""
    python = file == Path(sys.executable).resolve() or file.name.startswith("libpython")
    return python or file.parent.name == "lib-dynload" or bool(COMPILERS & set(file.parts))


def is_compilers(address: int) -> bool:
    """Whether the code at an address is a compiler's."""
    return bool(COMPILERS & set(_file_at(address).parts))


def _file_of(address: bytes) -> Path:
    """The file that a handler's code was loaded from."""
    return _file_at(int.from_bytes(address, sys.byteorder))


def _file_at(place: int) -> Path:
    """The file that the code at an address was loaded from; empty for code that was made in memory."""
    return next((one.file for one in mapped_ranges() if one.first <= place < one.last), Path())


def put_back_handlers(old: Mapping[int, Handler]) -> None:
    """Restore the interpreter's handlers, then the system's actions."""
    for number, handler in old.items():
        if handler.function is not None and number not in {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, handler.function)
    faulthandler.enable()
    for number, handler in old.items():
        if handler.action:
            c_library().sigaction(number, handler.action, None)


def _action(number: int) -> bytes:
    """The system's action for a signal."""
    action = ctypes.create_string_buffer(ACTION_BYTES)
    library = c_library()
    return action.raw if library is not None and library.sigaction(int(number), None, action) == 0 else b""
