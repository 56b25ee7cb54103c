"""The environment as libraries see it, which code in C changes without the interpreter."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from itertools import count

from opgauge.harness.worker.process_settings import c_library

SET_BY_LIBRARIES = (
    "_TORCH",
    "TORCHINDUCTOR",
    "TRITON",
    "KMP_",
    "PYTORCH",
    "CUDA_MODULE",
    "TORCH_",
    "XLA_",
    "TF_",
    "CUPY_",
    "COLUMNS",
    "LINES",
)
"""Prefixes of variables that libraries set as they are imported; the last two by readline, in C."""


def environment() -> dict[str, str]:
    """Present values, of the interpreter and of the C library."""
    found = dict(os.environ)
    if c_library() is not None:
        pairs = ctypes.POINTER(ctypes.c_char_p).in_dll(c_library(), "environ")
        for place in count():
            pair = pairs[place] if pairs else None
            if pair is None:
                break
            name, _, value = os.fsdecode(pair).partition("=")
            found[name] = value
    return found


def put_back_environment(old: Mapping[str, str]) -> None:
    """Restore the environment."""
    for name in environment().keys() - old.keys():
        os.unsetenv(name)
    os.environ.clear()
    os.environ.update(old)


def changed_environment(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Text about variables that differ; libraries set some as they are imported."""
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    names = [name for name in names if not name.startswith(SET_BY_LIBRARIES)]
    return f"changed the environment ({', '.join(names[:3])})" if names else ""
