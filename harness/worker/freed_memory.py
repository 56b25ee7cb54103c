"""Memory that is freed stays with this process, where the C library can be told so.

glibc maps large blocks apart, and returns the free end of its heap to the system from a size on: whether a new output
costs a page fault for each of its pages depends on what else lies there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opgauge.harness.worker.process_settings import c_library

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of glibc's mallopt."""
MOST = 2**31 - 1
"""Largest number that it takes."""
USUAL = {MMAP_MAX: 65_536, MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}
"""Numbers that glibc adapts itself to in a process that frees large blocks; it no longer does so once one was set."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Freed memory stays in the heap of malloc meanwhile, large blocks too; without effect on other C libraries."""
    library = c_library()
    if not hasattr(library, "mallopt"):
        yield
        return
    for parameter, number in ((MMAP_MAX, 0), (TRIM_THRESHOLD, MOST)):
        library.mallopt(parameter, number)
    try:
        yield
    finally:
        for parameter, number in USUAL.items():
            library.mallopt(parameter, number)
        library.malloc_trim(0)
