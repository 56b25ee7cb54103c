"""Liveness of the process that writes a run, which may have been killed without notice."""

from __future__ import annotations

import os
import platform
from pathlib import Path

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
"""Files that identify a boot of a machine, and a container on it."""


def process_identity(process: int | None = None) -> str:
    """Identity of this process, or of another one of this machine: boot or host, namespace, number, start."""
    number = os.getpid() if process is None else process
    return f"{_machine()} {number} {_start_of(number)}"


def is_gone(identity: str) -> bool:
    """Whether that process has certainly ended; False for a process of another machine or container."""
    machine, _, rest = identity.rpartition(" ")[0].rpartition(" ")
    start = identity.rpartition(" ")[2]
    if not rest.isdigit():
        return False
    rebooted = machine.partition(" ")[0] == platform.node() and machine != _machine()
    if rebooted:
        return machine.split(" ")[-1] == _machine().split(" ")[-1]
    return machine == _machine() and _start_of(int(rest)) != start


def _machine() -> str:
    return f"{platform.node()} {_boot()} {_namespace()}"


def _boot() -> str:
    try:
        return BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return "-"


def _namespace() -> str:
    try:
        return str(NAMESPACE.readlink()).replace(" ", "")
    except OSError:
        return "-"


def _start_of(process: int) -> str:
    """Start time in the kernel's clock ticks; empty without such a process, `-` if the system does not report it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else "-"
    except OSError:
        return "-"
    return "" if fields[0] in {"Z", "X"} else fields[19]
