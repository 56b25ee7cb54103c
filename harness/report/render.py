"""Tables of a run, rendered for a terminal. No information by colour alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from opgauge.harness.report.columns import Column, print_columns
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Result, Status
from opgauge.harness.result.summary import (
    BASELINE,
    OPTIMIZED,
    PEERS,
    Row,
    gbps,
    peak_bound,
    remarks,
    share_of_ceiling,
)
from opgauge.harness.result.time_text import time_text

LABEL, STATUS = 16, 8
"""Widths below which names and statuses do not fold further."""
GAPS = "†"
"""Mark of a time that includes gaps between launches."""
SHORT = {"torch": "torch", "torch_compile": "compile", "torchvision": "torchvision"}
"""Titles of columns that differ from the implementation's name."""


def ratio_text(value: float | None) -> str:
    """A ratio in three digits with its sign."""
    return "–" if value is None else f"{value:.3g}×" if value < 1000 else f"{value:.0f}×"


def comparison(found: Sequence[Row], ceilings: Mapping[str, Ceilings], *, variants: bool = False) -> list[Column]:
    """A line per case: times side by side, ratios, bandwidth, and the status of our own kernel."""
    names = {name for row in found for name in row.results}
    peers = [peer for peer in PEERS if peer in names]
    is_foreign = OPTIMIZED not in names
    others = sorted(names - {BASELINE, OPTIMIZED, *peers}) if variants or is_foreign else []
    columns = _subjects(found)
    if len({row.device for row in found}) > 1:
        columns.append(Column("device", [row.device for row in found], right=False))
    ranks = {OPTIMIZED: 0, BASELINE: 4, **dict.fromkeys(peers, 3), **dict.fromkeys(others, 5)}
    for name in others if is_foreign and not {BASELINE, *peers} & names else (BASELINE, *others, OPTIMIZED, *peers):
        columns.append(Column(SHORT.get(name, name), [_time(row, name) for row in found], ranks[name]))
    reached = [reached_text(row, ceilings) for row in found]
    ratios = [
        Column("× base", [ratio_text(row.speedup) for row in found], 2),
        Column("÷ peer", [ratio_text(row.against_peer) for row in found], 1),
    ]
    return [
        *columns,
        *([] if is_foreign else ratios),
        Column("GB/s", [rate for rate, _ in reached], 7),
        Column("ceil", [share for _, share in reached], 6),
        Column("bound", [bound_text(row.best, ceilings) for row in found], 8, right=False),
        Column("", [_status(row) for row in found], right=False, least=STATUS),
    ]


def against_peers(found: Sequence[Row], ceilings: Mapping[str, Ceilings]) -> list[Column]:
    """A line per case that a peer ran too: cold and hot times over those of the fastest, and which of them counts."""
    return [
        *_subjects(found),
        Column(OPTIMIZED, [time_text(row.median_ns(OPTIMIZED)) for row in found]),
        Column("÷ peer", [ratio_text(row.against_peer) for row in found], 1),
        Column("hot", [time_text(row.hot_ns(OPTIMIZED)) for row in found], 3),
        Column("hot ÷ peer", [ratio_text(row.hot_against_peer) for row in found], 2),
        Column("ceil", [reached_text(row, ceilings)[1] for row in found], 4),
        Column("", [f"{row.standing} ({row.decides})" for row in found], right=False, least=STATUS),
    ]


def _subjects(found: Sequence[Row]) -> list[Column]:
    return [
        Column("op · case", [label(row) for row in found], right=False, least=LABEL),
        Column("dtype", [row.dtype.replace("float", "f") for row in found], right=False),
    ]


def label(row: Row) -> str:
    """Op and case; the dtype, which has its own column, is left out of the name of a swept case."""
    name, bracket, point = row.case.rpartition(f"[{row.dtype}")
    if bracket and name and point == "]":
        return f"{row.op} · {name}"
    if bracket and name and point.startswith(",") and point.endswith("]"):
        return f"{row.op} · {name}[{point[1:]}"
    return f"{row.op} · {row.case}"


def _time(row: Row, implementation: str) -> str:
    result = row.results.get(implementation)
    if result is None:
        return ""
    if result.status is not Status.OK:
        return str(result.status)
    return time_text(row.median_ns(implementation)) + GAPS * _has_gaps(result)


def _has_gaps(result: Result) -> bool:
    return result.measurement is not None and result.measurement.has_gaps


def gaps_line(found: Iterable[Row]) -> str | None:
    """Explanation of the mark behind a time; None if no time has one."""
    marked = any(_has_gaps(result) for row in found for result in row.results.values())
    return f"{GAPS} includes gaps between launches: the call could not be enqueued as a whole." if marked else None


def reached_text(row: Row, ceilings: Mapping[str, Ceilings]) -> tuple[str, str]:
    """GB/s of the best result, and its share of the ceiling."""
    rate = None if row.best is None else gbps(row.best)
    return ("–" if rate is None else f"{rate:.3g}"), share_text(row.best, ceilings)


def share_text(result: Result | None, ceilings: Mapping[str, Ceilings]) -> str:
    """A result's share of the ceiling."""
    share = None if result is None else share_of_ceiling(result, ceilings)
    return "–" if share is None else f"{100 * share:.0f} %"


def bound_text(result: Result | None, ceilings: Mapping[str, Ceilings]) -> str:
    """The achieved peak that a result's share is of: read, add, copy, write or a matrix mode."""
    bound = None if result is None else peak_bound(result, ceilings)
    return "–" if bound is None else bound.peak


def remarks_table(results: Iterable[Result]) -> list[Column] | None:
    """Results whose median does not tell all, with what else their samples say; None if there are none."""
    found = [(result, text) for result in results if (text := "; ".join(remarks(result.extra, result.measurement)))]
    if not found:
        return None
    labels = [f"{result.trial.case.op} · {result.trial.case.name}" for result, _ in found]
    return [
        Column("op · case", labels, right=False, least=LABEL),
        Column("implementation", [result.trial.implementation for result, _ in found], right=False, least=STATUS),
        Column("samples", [text for _, text in found], right=False, least=LABEL),
    ]


def _status(row: Row) -> str:
    bad = [name for name, result in row.results.items() if result.status not in {Status.OK, Status.UNSUPPORTED}]
    return "✗ " + ", ".join(bad) if bad else "ok"


def failures(results: Iterable[Result]) -> list[Column] | None:
    """Results that are not ok, with their reasons; None if all are."""
    bad = [result for result in results if result.status is not Status.OK]
    if not bad:
        return None
    labels = [f"{result.trial.case.op} · {result.trial.case.name}" for result in bad]
    return [
        Column("op · case", labels, right=False, least=LABEL),
        Column("implementation", [result.trial.implementation for result in bad], right=False, least=STATUS),
        Column("status", [str(result.status) for result in bad], right=False, least=STATUS),
        Column("reason", [_first_line(result.reason) for result in bad], right=False, least=LABEL),
    ]


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"


def ceilings_line(ceilings: Mapping[str, Ceilings]) -> str:
    """Achieved peaks of the devices in this run, a line each."""
    lines = []
    for device, found in ceilings.items():
        parts = []
        if found.copy_gbps:
            parts.append(f"copy {found.copy_gbps:.4g} GB/s")
        if found.write_gbps:
            parts.append(f"write {found.write_gbps:.4g} GB/s")
        parts += [f"matrix {dtype} {rate / 1e3:.3g} TFLOP/s" for dtype, rate in found.matrix_gflops.items()]
        if found.launch_ns:
            parts.append(f"launch {time_text(found.launch_ns)}")
        lines.append(f"{device}: " + ", ".join(parts))
    return "\n".join(lines)


def show(
    found: Sequence[Row],
    results: Sequence[Result],
    ceilings: Mapping[str, Ceilings],
    console: Console,
    *,
    variants: bool = False,
) -> None:
    """Print the comparison, the achieved peaks of the devices, and the results that are not ok."""
    print_columns(comparison(found, ceilings, variants=variants), console)
    gaps = gaps_line(found)
    if gaps is not None:
        console.print(gaps, highlight=False)
    if ceilings:
        console.print(ceilings_line(ceilings), highlight=False, markup=False)
    noted = remarks_table([result for result in results if result.status is Status.OK])
    if noted is not None:
        print_columns(noted, console, title="remarks")
    wrong = failures(results)
    if wrong is not None:
        print_columns(wrong, console, title="not ok")


def commit_text(commit: str) -> str:
    """A commit in 12 digits, marked where the tree was dirty; `unknown` without one."""
    digits = commit.removesuffix("-dirty")
    return digits[:12] + commit[len(digits) :] if digits else "unknown"
