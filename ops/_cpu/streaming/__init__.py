"""Choice of non-temporal stores for CPU kernels; `opgauge.ops._cpu.streaming.jit` implements them.

An ordinary store first reads the line that it overwrites, and evicts another: a third of a copy's traffic is
wasted. A result that fits into the last-level cache stays there, for the kernel that reads it next.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

LINE_BYTES = 64
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN = 32 << 20
"""Bytes of a cache line, folder of the cache descriptions, and default cache size in bytes."""
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@cache
def last_cache_bytes(folder: Path = CACHES) -> int:
    """Size of the largest cache that the system reports; 32 MiB if it reports none."""
    texts = [file.read_text().strip() for file in folder.glob("index*/size")]
    return max((int(text[:-1]) * _UNITS[text[-1]] for text in texts if text[-1:] in _UNITS), default=UNKNOWN)


def pays(*arrays: Any) -> bool:
    """Whether a kernel reads and writes more than the last-level cache can hold."""
    return bool(sum(array.nbytes for array in arrays) > last_cache_bytes())


def lie_alike(one: Any, other: Any) -> bool:
    """Whether equal elements of two arrays have the same offset within a cache line."""
    return bool((one.ctypes.data - other.ctypes.data) % LINE_BYTES == 0)
