"""Runs whose every field holds what nobody expects there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**63 - 1, 2**63, 10**30, 1e18, 1e-9, 1e300, -1e300, 5e-324),
    *("", "x", "inf", "-inf", "nan", ".inf", "\u202e", "<script>alert(1)</script>", "=1+1", "../../x", "{{7*7}}"),
    *("a" * 70, "a" * 5000, "\x7f\x1b[0m", "\u0085\u2028", "\ud800", "2026-01-31T12:00:00+00:00", "cuda:0", "p_norm"),
    *([], {}, [1], ["x"], [None], {"a": 1}, {"": None}, [[1]], [1e300] * 3, [0], [2**40, 2**20], {"x": [0]}, {"x": []}),
)
KEYS = ("x", "", "__proto__", "\u202e", "a" * 100, "reads", "phase", "log", "quantiles_ns", "cuda:0.", ".")
Path = tuple[str | int, ...]


def places(data: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in JSON, of long lists the beginning."""
    items: Any = data.items() if isinstance(data, dict) else enumerate(data[:3]) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def put(data: Any, path: Path, value: Any) -> None:
    """Set what is at a place; KeyError, IndexError or TypeError where it is there no more."""
    *folders, last = path
    for name in folders:
        data = data[name]
    data[last] = copy.deepcopy(value)


def laden(run: dict[str, Any]) -> dict[str, Any]:
    """The run with everything that a result may have."""
    kernel = {"name": "k", "launches": 1, "time_ns": 1.0, "share": 1.0, "grid": [1, 1, 1], "block": [1, 1, 1]}
    for result in run["results"]:
        result["ruler"] = {"copy_ns": 1.0, "arithmetic_ns": 2.0, "launch_ns": 3.0, "clock_mhz": 1500.0}
        result["extra"] = {"phase": "x", "log": "y", "phases_s": {"a": 1.0}, "repeatable": True, "reads": False}
        result["profile"] = {"kernels": [{**kernel, "registers": 1, "shared_bytes": 1, "local_bytes": 0}]}
        result["profile"] |= {"time_ns": 1.0, "calls": 1, "tool": "t", "reason": "", "empty_ns": 1.0}
        if result["measurement"]:
            seen = {"launches": 1, "kernels": ["k"], "allocations": 0, "registers": 3, "spill_bytes": 0}
            result["measurement"] |= {"footprint": seen, "cpu_ns": [1.0], "clock_mhz": [1.0], "peak_bytes": 1}
    return run
