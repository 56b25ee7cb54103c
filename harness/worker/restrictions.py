"""Limits and other state of a process that Linux tells and nothing undoes: a later kernel would be slower or refused.

Everything in the process's status counts except what varies by itself, or is put back as one of its settings.
"""

from __future__ import annotations

import ctypes
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from opgauge.harness.worker.process_settings import PR_GET_CHILD_SUBREAPER, PROCESS, c_library

VARYING = (
    *("CoreDumping", "Cpus", "FDSize", "Hugetlb", "Name", "Ngid", "Rss", "ShdPnd", "Sig", "State", "THP", "Threads"),
    *("TracerPid", "Umask", "Vm", "nonvoluntary", "voluntary"),
)
"""Start of the names of what varies in the status, or is looked at elsewhere."""
FILES = ("autogroup", "cgroup", "coredump_filter", "oom_score_adj", "personality", "timers")
"""Files with further state: groups of processes, what happens when memory is short, and timers."""
WRITTEN = {"adoption of orphans": PR_GET_CHILD_SUBREAPER, "signal at its parent's end": 2, "use of the counter": 25}
"""Options of prctl by which the system writes a number."""
RETURNED = {"accessibility": 3, "security bits": 27, "merging of pages": 68}
"""Options of prctl whose number the call returns."""
PRIORITY, PLACEMENT = "priority of input and output", "placement of memory"
CALLS = {
    "x86_64": {PRIORITY: 252, PLACEMENT: 239},
    "aarch64": {PRIORITY: 31, PLACEMENT: 236},
}
"""Numbers of calls that the C library lacks, by architecture."""
WATCHING = ("anon_inode:[perf_event]", "anon_inode:[userfaultfd]", "anon_inode:[io_uring]")
"""Descriptors by which the system counts, waits or works beside the process."""


def restrictions() -> dict[str, str]:
    """Present state by name; empty on other systems."""
    if c_library() is None:
        return {}
    return dict(_status()) | dict(_files()) | dict(_options()) | dict(_calls())


def changed_restrictions(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Text about state that differs."""
    names = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    return f"changed the process, which nothing undoes ({', '.join(sorted(names)[:3])})" if names else ""


def _status() -> Iterator[tuple[str, str]]:
    with suppress(OSError):
        for line in (PROCESS / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            if not line.startswith(VARYING):
                name, _, value = line.partition(":")
                yield name, value


def _files() -> Iterator[tuple[str, str]]:
    """Contents of files, targets of links, and number of descriptors of each kind that watches."""
    for name in FILES:
        with suppress(OSError):
            yield name, (PROCESS / name).read_text(encoding="utf-8", errors="replace")
    for path in (PROCESS / "root", *_within("ns")):
        with suppress(OSError):
            yield path.name, str(path.readlink())
    found = Counter[str]()
    for path in _within("fd"):
        with suppress(OSError):
            found[str(path.readlink())] += 1
    for kind in WATCHING:
        yield kind.partition(":")[2], str(found[kind])


def _within(folder: str) -> list[Path]:
    with suppress(OSError):
        return list((PROCESS / folder).iterdir())
    return []


def _options() -> Iterator[tuple[str, str]]:
    number = ctypes.c_int()
    for name, option in WRITTEN.items():
        if c_library().prctl(option, ctypes.byref(number), 0, 0, 0) == 0:
            yield name, str(number.value)
    for name, option in RETURNED.items():
        yield name, str(c_library().prctl(option, 0, 0, 0, 0))


def _calls() -> Iterator[tuple[str, str]]:
    numbers = CALLS.get(platform.machine())
    if numbers is None:
        return
    call, policy = c_library().syscall, ctypes.c_int()
    yield PRIORITY, str(call(numbers[PRIORITY], 1, 0))
    if call(numbers[PLACEMENT], ctypes.byref(policy), None, ctypes.c_ulong(0), None, 0) == 0:
        yield PLACEMENT, str(policy.value)
