"""Kernel lists for a terminal: share, time, launches and name of each kernel of one call, the longest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from opgauge.harness.counting import counted
from opgauge.harness.measure.footprint import short_name
from opgauge.harness.report.columns import Column, print_columns
from opgauge.harness.result.result import KernelUse, Profile, Result
from opgauge.harness.result.time_text import time_text

NAME, LEAST = "Name", 24
"""Title of the column of kernel names, and the width down to which they wrap."""
COLUMNS = ("No.", "Time (%)", "Time", "Calls", "grid × block", "registers", "shared", NAME)
"""Titles of the columns."""
RANKS = {"Time (%)": 1, "Calls": 2, "grid × block": 3, "registers": 4, "shared": 5}
"""Order in which columns are omitted on a narrow terminal, the largest first."""


def show(results: Iterable[Result], console: Console) -> None:
    """Print a table for each result that has a kernel list, and why others have none."""
    reasons: dict[str, int] = {}
    shown = 0
    for result in results:
        profile = result.profile
        if profile is None or not profile.kernels:
            reason = "not requested: measure with --profile" if profile is None else profile.reason
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        shown += 1
        print_columns(columns(profile), console, title=_title(result, profile))
    for reason, count in reasons.items():
        console.print(f"no kernel list for {counted(count, 'result')}: {reason}", highlight=False, markup=False)
    if not shown and not reasons:
        console.print("no results")


def columns(profile: Profile) -> list[Column]:
    """The kernels of one result."""
    cells = [(str(number), *_cells(kernel)) for number, kernel in enumerate(profile.kernels, 1)]
    return [
        Column(title, column, RANKS.get(title, 0), title != NAME, LEAST if title == NAME else 0)
        for title, column in zip(COLUMNS, zip(*cells, strict=True), strict=True)
    ]


def _cells(kernel: KernelUse) -> Sequence[str]:
    sizes = "" if kernel.grid is None else f"{_size(kernel.grid)} × {_size(kernel.block or ())}"
    registers = "" if kernel.registers is None else str(kernel.registers)
    shared = "" if kernel.shared_bytes is None else f"{kernel.shared_bytes:,}"
    return (
        f"{100 * kernel.share:.2f}",
        time_text(kernel.time_ns),
        str(kernel.launches),
        sizes,
        registers,
        shared,
        short_name(kernel.name),
    )


def _size(numbers: Sequence[int]) -> str:
    """A grid or block without trailing ones."""
    kept = list(numbers)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return ",".join(map(str, kept))


def _title(result: Result, profile: Profile) -> str:
    trial = result.trial
    measurement, gap = result.measurement, result.host_gap_ns
    parts = [f"{counted(profile.launches, 'launch')} in {time_text(profile.time_ns)}"]
    if measurement is not None and gap is not None:
        parts.append(f"cold {time_text(measurement.median_ns)}, gaps {_signed(gap)} of it")
    return f"{trial.case.op} · {trial.case.name} · {trial.implementation}: {'; '.join(parts)}"


def _signed(nanoseconds: float) -> str:
    return time_text(nanoseconds) if nanoseconds >= 0 else f"-{time_text(-nanoseconds)}"
