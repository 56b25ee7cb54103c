"""Implementations of p_norm (float32, porder inf, last axis) for CUDA that go wrong, named after how they do.

Importing this module registers them, so only workers do: `LocalExecutor(preload=[…])`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from opgauge.ops import kernel
from opgauge.ops._core.backend import cupy

SOURCE = Path(__file__).with_suffix(".cu")


def faulty(function: Callable[[Any, dict[str, Any]], None]) -> None:
    """Register `function(x, out)` under its own name."""

    def run(*, x: Any, out: dict[str, Any], **params: object) -> None:
        del params
        function(x, out)

    kernel("p_norm", function.__name__, "cuda", ("float32",))(run)


@cache
def launched(name: str) -> Any:
    """A kernel of the source beside this file."""
    return cupy().RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17",)).get_function(name)


def launching(name: str) -> None:
    """Register an implementation that launches one thread of the kernel of its name."""

    def run(*, out: dict[str, Any], **inputs: object) -> None:
        del inputs
        launched(name)((1,), (1,), (out["y"],))

    kernel("p_norm", name, "cuda", ("float32",))(run)


for _name in ("illegal_access", "device_assert", "endless_kernel"):
    launching(_name)


@faulty
def overrun_on_device(x: Any, out: dict[str, Any]) -> None:
    cupy().max(cupy().abs(x), axis=-1, out=out["y"])
    launched("overrun")((1,), (1,), (out["y"], cupy().uint32(out["y"].size)))


@faulty
def exhaust_device(x: Any, out: dict[str, Any]) -> None:
    del out
    cupy().empty(1 << 45, x.dtype)
