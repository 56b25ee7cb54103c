"""Settings of a process that a kernel may change, each read and restored by one function.

Later kernels would be slower without large pages, and fail with a narrow file mode mask.
"""

from __future__ import annotations

import ctypes
import decimal
import faulthandler
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

PR_SET_TIMERSLACK, PR_GET_TIMERSLACK, PR_SET_THP_DISABLE, PR_GET_THP_DISABLE = 29, 30, 41, 42
"""Options of prctl."""


class ProcessSetting(NamedTuple):
    """Function that reads a setting, and one that restores it."""

    read: Callable[[], Any]
    put_back: Callable[[Any], Any]


def settings() -> dict[str, Any]:
    """Present values by name."""
    return {name: setting.read() for name, setting in SETTINGS.items()}


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names of the settings that differ; libraries may add folders to the import path."""
    names = [name for name, value in old.items() if new[name] != value]
    if PATH in names and _within(new[PATH], old[PATH]) == old[PATH]:
        names.remove(PATH)
    return f"changed {', '.join(names)}" if names else ""


def put_back_settings(old: Mapping[str, Any]) -> None:
    """Restore all of them."""
    for name, value in old.items():
        with suppress(OSError, ValueError):
            SETTINGS[name].put_back(value)


@cache
def c_library() -> Any:
    """The C library; None on other systems than Linux."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None


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


def _put_back_path(old: list[str]) -> None:
    sys.path[:] = old


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
    "tracebacks of crashes": ProcessSetting(faulthandler.is_enabled, _put_back_tracebacks),
    "the use of large pages": ProcessSetting(
        lambda: _control(PR_GET_THP_DISABLE), lambda old: _control(PR_SET_THP_DISABLE, old)
    ),
    "the resolution of timers": ProcessSetting(
        lambda: _control(PR_GET_TIMERSLACK), lambda old: _control(PR_SET_TIMERSLACK, old)
    ),
}
"""Settings by name."""
