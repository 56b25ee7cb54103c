"""Liveness of the process that writes a run: it may have been killed without a chance to say so."""

from __future__ import annotations

import os
import platform
from pathlib import Path

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
"""Files that tell one boot of a machine, and one container on it, from another."""


def process_identity(process: int | None = None) -> str:
    """This process, or another one of this machine, told from all others: boot or host, namespace, number, start."""
    number = os.getpid() if process is None else process
    return f"{_machine()} {number} {_start_of(number)}"


def is_gone(identity: str) -> bool:
    """Whether that process has certainly ended; False for one of another machine or container."""
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
    """Start time in the kernel's clock ticks; empty without such a process, `-` where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else "-"
    except OSError:
        return "-"
    return "" if fields[0] in {"Z", "X"} else fields[19]
