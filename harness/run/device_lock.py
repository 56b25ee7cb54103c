"""Lock that lets one opgauge at a time measure on a GPU; the second waits and reports it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from opgauge.harness.settings import visible_gpu
from opgauge.ops import Device


@contextmanager
def device_locks(devices: Iterable[str], notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of each GPU among `devices`; `notify` is called with a message if one is taken."""
    with ExitStack() as stack:
        for name in sorted({str(Device.parse(text)) for text in devices}):
            if Device.parse(name).backend != "cpu":
                stack.enter_context(_lock(name, notify))
        yield


@contextmanager
def _lock(device: str, notify: Callable[[str], None]) -> Iterator[None]:
    path = lock_path(device)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify(f"{device}: another opgauge measures on it; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_path(device: str) -> Path:
    """Lock file of a GPU, by the name that all processes of this host use for it."""
    name = visible_gpu(Device.parse(device).index).replace("/", "-")
    return Path(tempfile.gettempdir()) / f"opgauge-gpu-{name}.lock"
