"""Counts the instructions of a kernel's calls: `python -m opgauge.harness.worker.instructions` in a process of its own.

Each trial on standard input is bound and called once. Then two forks call it `FEW` and `MANY` times more, so that the
difference of their counts is that of `MANY - FEW` calls alone. Under valgrind's cachegrind each fork leaves a file
with its count, which the parent process reads; where the kernel permits hardware counters this process reads them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import struct
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

FEW, MANY = 4, 24
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
"""Number of the system call, by machine."""
_HARDWARE, _INSTRUCTIONS = 0, 1
_ATTRIBUTE_BYTES = 128
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6


def main() -> None:
    """Count each trial; one line of JSON per trial: process ids of both forks, counts of both, or a failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="")
    options = parser.parse_args()
    if options.ops:
        from opgauge.harness.worker.tree import use_tree

        use_tree(Path(options.ops))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(_count(json.loads(line))) + "\n")
        replies.flush()


def _count(plain: dict[str, Any]) -> dict[str, Any]:
    try:
        call = _bind(plain)
        call()
    except Exception as error:  # noqa: BLE001  whatever a kernel raises
        return {"failed": f"{type(error).__name__}: {error}"}
    found = [_fork(call, calls) for calls in (FEW, MANY)]
    return {"processes": [process for process, _ in found], "counts": [count for _, count in found]}


def _bind(plain: dict[str, Any]) -> Callable[[], Any]:
    """The kernel of a trial, bound to its inputs."""
    from opgauge.harness.measure import timer_for
    from opgauge.harness.result.result import Trial, from_json
    from opgauge.harness.worker.attempt import Attempt
    from opgauge.harness.worker.bench import find_trial_kernel
    from opgauge.harness.worker.inputs import make_inputs

    trial = from_json(Trial, plain)
    found = find_trial_kernel(trial)
    return Attempt(trial.case, found.kernel, make_inputs(trial.case).values, timer_for("cpu")).bind()


def _fork(call: Callable[[], Any], calls: int) -> tuple[int, int]:
    """Process id of a fork that makes so many calls, and the instructions that its counter saw; 0 without a counter."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        count = 0
        try:
            counter = open_counter()
            for _ in repeat(None, calls):
                call()
            if counter is not None:
                count = struct.unpack("q", os.read(counter, 8))[0]
        finally:
            os.write(writing, struct.pack("q", count))
            # no handlers at exit: what the parent registered is not for this process
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
