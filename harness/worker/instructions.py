"""Counts the instructions of a kernel's calls: `python -m opgauge.harness.worker.instructions` in a process of its own.

Each request on standard input names a trial, which is bound and called once. With two numbers of calls, one fork makes
the smaller number and another the larger: the difference of their counts belongs to the calls alone, without imports,
inputs and compilation. Under valgrind's cachegrind each fork writes a file with its count, which the parent process
reads. Where the system permits hardware counters, this process reads them. Without numbers of calls, the reply is the
time of a call, and the code is compiled for the processes that follow.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import struct
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from typing import Any

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
"""Number of the system call, by machine."""
_HARDWARE, _INSTRUCTIONS = 0, 1
_ATTRIBUTE_BYTES = 128
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6


def main() -> None:
    """Answer each request by one line of JSON: process ids and counts of both forks, a time, or a failure."""
    from opgauge.harness.worker.contract import incompatibility, project_incompatibility

    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", type=Path, help="tree whose `ops` to import, or a checkout of the project")
    parser.add_argument("--project", type=Path, help="configuration of the project whose ops to import")
    options = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reason = project_incompatibility(options.project, options.ops) if options.project else incompatibility(options.ops)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"failed": reason} if reason else _answer(request["trial"], request["calls"])
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


def _answer(plain: dict[str, Any], calls: list[int]) -> dict[str, Any]:
    try:
        call = _bind(plain)
        call()
        if not calls:
            return {"call_ns": _time_ns(call)}
    except Exception as error:  # noqa: BLE001  whatever a kernel raises
        return {"failed": f"{type(error).__name__}: {error}"}
    found = [_fork(call, count) for count in calls]
    return {"processes": [process for process, _ in found], "counts": [count for _, count in found]}


def _bind(plain: dict[str, Any]) -> Callable[[], Any]:
    """The kernel of a trial, bound to its inputs."""
    from opgauge.harness.measure import timer_for
    from opgauge.harness.result.record_json import from_json
    from opgauge.harness.result.result import Trial
    from opgauge.harness.worker.attempt import Attempt
    from opgauge.harness.worker.inputs import make_inputs
    from opgauge.harness.worker.trial_kernel import find_trial_kernel

    trial = from_json(Trial, plain)
    found = find_trial_kernel(trial)
    return Attempt(trial.case, found.kernel, make_inputs(trial.case).values, timer_for("cpu")).bind()


def _time_ns(call: Callable[[], Any]) -> int:
    """Time of one call, in nanoseconds."""
    started = perf_counter_ns()
    call()
    return perf_counter_ns() - started


def _fork(call: Callable[[], Any], calls: int) -> tuple[int, int]:
    """Process id of a fork that makes so many calls, and the instructions that its counter saw; 0 without a counter."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        count = 0
        try:
            # a collection would fall into one of the two forks only
            gc.disable()
            counter = open_counter()
            for _ in repeat(None, calls):
                call()
            if counter is not None:
                count = struct.unpack("q", os.read(counter, 8))[0]
        finally:
            os.write(writing, struct.pack("q", count))
            # no handlers at exit: the parent process registered them for itself
            os._exit(0)
    os.close(writing)
    sent = os.read(reading, 8)
    os.close(reading)
    os.waitpid(process, 0)
    return process, struct.unpack("q", sent)[0] if len(sent) == 8 else 0


def open_counter() -> int | None:
    """Descriptor of a counter of this process's user-mode instructions; None where the system refuses one."""
    number = PERF_EVENT_OPEN.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return None
    flags = _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    attribute = struct.pack("IIQQQQQ", _HARDWARE, _ATTRIBUTE_BYTES, _INSTRUCTIONS, 0, 0, 0, flags)
    buffer = ctypes.create_string_buffer(attribute.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, buffer, 0, -1, -1, 0)
    return descriptor if descriptor >= 0 else None


if __name__ == "__main__":
    main()
