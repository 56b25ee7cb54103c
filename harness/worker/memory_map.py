"""Memory of this process as Linux lists it: ranges of addresses, whether they can be read, and their files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

MAPS = Path("/proc/self/maps")
"""File with a line for each range."""
PAGEMAP = Path("/proc/self/pagemap")
"""File with 64 bits for each page."""


class MappedRange(NamedTuple):
    """Addresses from `first` to before `last`; file: that they were loaded from, empty for none."""

    first: int
    last: int
    readable: bool
    file: Path


def mapped_ranges(*, only_code: bool = False) -> Iterator[MappedRange]:
    """The ranges in order; none on other systems."""
    with suppress(OSError):
        for line in MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
            if only_code and "xp " not in line:
                continue
            addresses, permissions, *_ = fields = line.split(maxsplit=5)
            first, last = (int(one, 16) for one in addresses.split("-"))
            yield MappedRange(first, last, permissions.startswith("r"), _path(*fields[5:]))


@lru_cache(maxsize=1024)
def _path(*name: str) -> Path:
    return Path(*name)
