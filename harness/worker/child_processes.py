"""Child processes of a worker. Processes that their parents have left become its children too (see `serve`)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from opgauge.harness.worker.call_time import scheduled_ns

COMPILE_WORKER = b"torch/_inductor/compile_worker"
"""Part of the command of the process that torch's compiler starts with its first compilation, for later ones."""
ENDED = ("Z", "X")
"""States of processes that have ended."""
PROCESSES = Path("/proc")
"""Folder of Linux with the state of each process."""


def child_processes(process: int | None = None) -> frozenset[int]:
    """Children of a process, by default of this one, that have not ended."""
    found: list[int] = []
    for task in (PROCESSES / str(process or "self") / "task").glob("*/children"):
        with suppress(OSError):
            found += [int(one) for one in task.read_text(encoding="ascii").split()]
    return frozenset(child for child in found if not _has_ended(child))


def changed_children(old: frozenset[int], new: frozenset[int]) -> str:
    """Names of new children, except those of torch's compiler."""
    names = []
    for child in _foreign(new - old):
        with suppress(OSError):
            names.append((PROCESSES / str(child) / "comm").read_text(encoding="utf-8", errors="replace").strip())
    return f"left child processes ({', '.join(sorted(set(names)))})" if names else ""


def descendants(process: int) -> list[int]:
    """Children of a process, and theirs."""
    return [one for child in child_processes(process) for one in (child, *descendants(child))]


def children_ns(process: int | None = None) -> int:
    """CPU time of the threads of all descendants, except those of torch's compiler; 0 on systems that do not tell."""
    total = 0
    for child in _foreign(child_processes(process)):
        total += scheduled_ns(PROCESSES / str(child) / "task").ran_ns + children_ns(child)
    return total


def _foreign(children: frozenset[int]) -> list[int]:
    """Children that are not of torch's compiler, and have not ended."""
    found = []
    for child in children:
        with suppress(OSError):
            if COMPILE_WORKER not in (PROCESSES / str(child) / "cmdline").read_bytes():
                found.append(child)
    return found


def _has_ended(process: int) -> bool:
    try:
        status = (PROCESSES / str(process) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in ENDED
