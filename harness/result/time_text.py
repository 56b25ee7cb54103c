"""Times as texts."""

from __future__ import annotations


def time_text(nanoseconds: float | None) -> str:
    """A time in three digits with its unit."""
    if nanoseconds is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"
