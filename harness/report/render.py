"""Tables for a terminal, from plain values. No information by colour alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opgauge.harness.result.result import Ceilings, Result, Status
from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS, Row, gbps, share_of_ceiling
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

LABEL = 16
GAPS = "†"
"""Behind a time that is the host's too."""
SHORT = {"torch": "torch", "torch_compile": "compile", "torchvision": "torchvision", "baseline": "baseline"}


def time_text(nanoseconds: float | None) -> str:
    """A time in three digits with its unit."""
    if nanoseconds is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def ratio_text(value: float | None) -> str:
    """A ratio in three digits with its sign."""
    return "–" if value is None else f"{value:.3g}×" if value < 1000 else f"{value:.0f}×"


def comparison(found: Sequence[Row], ceilings: Mapping[str, Ceilings], *, variants: bool = False) -> Table:
    """A line per case: times side by side, ratios, bandwidth, and the status of our own kernel."""
    names = {name for row in found for name in row.results}
    peers = [peer for peer in PEERS if peer in names]
    others = sorted(names - {BASELINE, OPTIMIZED, *peers}) if variants else []
    devices = {row.device for row in found}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("op · case", overflow="fold", min_width=LABEL)
    table.add_column("dtype")
    if len(devices) > 1:
        table.add_column("device")
    for name in ("baseline", *others, "optimized", *peers):
        table.add_column(SHORT.get(name, name), justify="right", no_wrap=True)
    for name in ("× base", "÷ peer", "GB/s", "ceil"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in found:
        cells = [escape(label(row)), row.dtype.replace("float", "f")]
        if len(devices) > 1:
            cells.append(row.device)
        cells += [_time(row, name) for name in ("baseline", *others, "optimized", *peers)]
        cells += [ratio_text(row.speedup), ratio_text(row.against_peer), *reached_text(row, ceilings), _status(row)]
        table.add_row(*cells)
    return table


def against_peers(found: Sequence[Row], ceilings: Mapping[str, Ceilings]) -> Table:
    """A line per case that a peer ran too: cold and hot times over those of the fastest, and which of them counts."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("op · case", overflow="fold", min_width=LABEL)
    table.add_column("dtype")
    for name in ("optimized", "÷ peer", "hot", "hot ÷ peer", "ceil"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in found:
        table.add_row(
            escape(label(row)),
            row.dtype.replace("float", "f"),
            time_text(row.median_ns(OPTIMIZED)),
            ratio_text(row.against_peer),
            time_text(row.hot_ns(OPTIMIZED)),
            ratio_text(row.hot_against_peer),
            reached_text(row, ceilings)[1],
            f"{row.standing} ({row.decides})",
        )
    return table


def label(row: Row) -> str:
    """Op and case, with what tells cases of one name apart, save the dtype."""
    return f"{row.op} · {row.case.partition('[')[0]}{_varying(row.case)}"


def _varying(name: str) -> str:
    inside = name.partition("[")[2].removesuffix("]")
    kept = [part for part in inside.split(",") if part and not part.startswith(("float", "bfloat", "int"))]
    return f" [{', '.join(kept)}]" if kept else ""


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
    """What the mark behind a time says; None where no time has one."""
    marked = any(_has_gaps(result) for row in found for result in row.results.values())
    return f"{GAPS} with what the host took between launches: it could not all be enqueued ahead." if marked else None


def reached_text(row: Row, ceilings: Mapping[str, Ceilings]) -> tuple[str, str]:
    """GB/s of the best result, and its share of the ceiling."""
    rate = None if row.best is None else gbps(row.best)
    return ("–" if rate is None else f"{rate:.3g}"), share_text(row.best, ceilings)


def share_text(result: Result | None, ceilings: Mapping[str, Ceilings]) -> str:
    """A result's share of the ceiling."""
    share = None if result is None else share_of_ceiling(result, ceilings)
    return "–" if share is None else f"{100 * share:.0f} %"


def _status(row: Row) -> str:
    bad = [name for name, result in row.results.items() if result.status not in {Status.OK, Status.UNSUPPORTED}]
    return "✗ " + ", ".join(bad) if bad else "ok"


def failures(results: Iterable[Result]) -> Table | None:
    """What is not ok, with its reason; None where all is."""
    bad = [result for result in results if result.status is not Status.OK]
    if not bad:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="not ok", title_justify="left")
    for name in ("op · case", "implementation", "status", "reason"):
        table.add_column(name, overflow="fold")
    for result in bad:
        trial = result.trial
        label = escape(f"{trial.case.op} · {trial.case.name}")
        table.add_row(label, trial.implementation, str(result.status), escape(_first_line(result.reason)))
    return table


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"


def ceilings_line(ceilings: Mapping[str, Ceilings]) -> str:
    """What the devices reached in this run, on one line each."""
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
    """Print the comparison, what the devices reached, and what is not ok."""
    console.print(comparison(found, ceilings, variants=variants))
    gaps = gaps_line(found)
    if gaps is not None:
        console.print(gaps)
    if ceilings:
        console.print(escape(ceilings_line(ceilings)), highlight=False)
    wrong = failures(results)
    if wrong is not None:
        console.print(wrong)
