"""Profiles of results: kernels as CUPTI recorded them, validated, as submitted runs may contain anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 200
"""Most kernels of one result."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel within one call: launches, time of all of them in nanoseconds, share of the kernels' time."""

    name: str
    launches: int
    time_ns: float
    share: float


def kernel_times(data: Mapping[str, Any]) -> list[KernelTime]:
    """The kernels of a result's JSON, longest first; empty where no profile was made."""
    profile = data.get("profile")
    listed = profile.get("kernels") if isinstance(profile, Mapping) else None
    if not isinstance(listed, list):
        return []
    read = [found for found in (_read(item) for item in listed[:MOST]) if found is not None]
    total = sum(time for _, _, time in read) or 1.0
    kernels = [KernelTime(name, launches, time, time / total) for name, launches, time in read]
    return sorted(kernels, key=lambda kernel: -kernel.time_ns)


def _read(item: Any) -> tuple[str, int, float] | None:
    if not isinstance(item, Mapping):
        return None
    launches, time = number(item, "launches"), number(item, "time_ns")
    return str(item.get("name", "?")), int(1 if launches is None else launches), time or 0.0


def number(item: Any, name: str) -> float | None:
    """A finite number that is not negative, of a mapping; None for anything else."""
    value = item.get(name) if isinstance(item, Mapping) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    return None
