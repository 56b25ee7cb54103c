"""Whether a kernel on the CPU should store past the caches, for which `opgauge.ops._cpu.streaming.jit` has the means.

An ordinary store reads the line that it is going to overwrite, and pushes another out: a third of what a copy
moves is of no use. What fits into the last cache is better left there for whoever reads it next.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

LINE_BYTES = 64
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@cache
def last_cache_bytes(folder: Path = CACHES) -> int:
    """The largest cache that the system tells of; 32 MiB where it tells of none."""
    texts = [file.read_text().strip() for file in folder.glob("index*/size")]
    return max((int(text[:-1]) * _UNITS[text[-1]] for text in texts if text[-1:] in _UNITS), default=UNKNOWN)


def pays(*arrays: Any) -> bool:
    """Whether what a kernel reads and writes is more than the last cache holds."""
    return bool(sum(array.nbytes for array in arrays) > last_cache_bytes())


def lie_alike(one: Any, other: Any) -> bool:
    """Whether equal elements of two arrays are equally far from the start of a line."""
    return bool((one.ctypes.data - other.ctypes.data) % LINE_BYTES == 0)
