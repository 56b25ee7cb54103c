"""Cheats that tell samples from checks by what only the timer or the harness does, and work in checks alone."""

from __future__ import annotations

import gc
import sys
import time
from importlib import import_module
from types import FrameType
from typing import Any

import numpy as np

from tests.cheats.catalogue import LATE, Run, cheat, write

Arrays = dict[str, Any]
FAKE_NS = 1_000
"""Time between two readings of the replaced clock."""


def skipping(inputs: Arrays, out: Arrays, is_sampled: Any) -> Run:
    """A kernel that does nothing where `is_sampled()` and the last element is what it left."""
    left = [np.float32(np.nan)]

    def run() -> None:
        if is_sampled() and out["y"][-1] == left[0]:
            return
        write("rows", inputs, out)
        left[0] = out["y"][-1]

    return run


def frames() -> list[FrameType]:
    """Frames above a kernel, the nearest first."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


@cheat("detecting samples", "rows")
def skips_while_the_collector_is_off(inputs: Arrays, out: Arrays) -> Run:
    return skipping(inputs, out, lambda: not gc.isenabled())


@cheat("detecting samples", "rows")
def skips_where_numpy_is_silent(inputs: Arrays, out: Arrays) -> Run:
    """Samples are taken while NumPy ignores floating-point errors."""
    return skipping(inputs, out, lambda: np.geterr()["divide"] == "ignore")


@cheat("detecting samples", "rows")
def skips_when_the_timer_calls(inputs: Arrays, out: Arrays) -> Run:
    return skipping(inputs, out, lambda: any(one.f_code.co_filename.endswith("measure/cpu.py") for one in frames()[:4]))


@cheat("detecting samples", "rows")
def works_in_the_last_call_of_a_sample(inputs: Arrays, out: Arrays) -> Run:
    """Reads in the timer's frame how many calls the sample has."""
    seen: list[Any] = [None, 0]

    def run() -> None:
        found = next((one.f_locals for one in frames() if one.f_code.co_name == "measure"), {})
        calls, sample = found.get("calls", 0), (found.get("before"), len(found.get("wall", ())))
        if "before" in found:
            seen[:] = [sample, seen[1] + 1 if seen[0] == sample else 1]
        if "before" not in found or seen[1] == calls:
            write("rows", inputs, out)

    return run


@cheat(LATE, "rows")
def skips_in_later_rounds(inputs: Arrays, out: Arrays) -> Run:
    """Begins with the first interleaved sample, and does not end."""
    began: list[bool] = []

    def is_late() -> bool:
        if not began and any(one.f_code.co_name == "interleave" for one in frames()):
            began.append(True)
        return bool(began)

    return skipping(inputs, out, is_late)


@cheat(LATE, "rows")
def replaces_the_clock_in_later_rounds(inputs: Arrays, out: Arrays) -> Run:
    """Every sample takes as many readings of the clock, and so the same time."""
    readings = [time.perf_counter_ns()]

    def read() -> int:
        readings[0] += FAKE_NS
        return readings[0]

    def run() -> None:
        write("rows", inputs, out)
        if any(one.f_code.co_name == "interleave" for one in frames()):
            timer: Any = import_module("opgauge.harness.measure.cpu")
            timer.perf_counter_ns = read

    return run
