"""Coverage: how `optimized` compares with the fastest other implementation over the size of a case, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS
from opgauge.web.charts import SYMBOLS, as_json, literal
from opgauge.web.rows import CaseLevels
from opgauge.web.text import time_text

COLOURS = 8
"""Colours of the page for things that are not implementations."""
CLIFF = 1.5
"""Ratio above which a case counts as a cliff."""


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """A case, the ratio of optimized to the fastest of peers and baseline, and which one that is."""

    row: CaseLevels
    ratio: float
    rival: str

    @property
    def time_ns(self) -> float:
        """Median time of optimized, nanoseconds."""
        return self.row.time_ns(OPTIMIZED) or 0.0


@dataclass(frozen=True, slots=True)
class OpCoverage:
    """Cases of one op against their fastest peers: number, median and worst ratio, share above 1.10, cliffs."""

    op: str
    cases: int
    median: float
    worst: PeerComparison
    above: float
    cliffs: int


def compared(rows: Iterable[CaseLevels]) -> list[PeerComparison]:
    """Cases with a time of optimized and of another implementation, the slowest against it first."""
    found = []
    for row in rows:
        own = row.time_ns(OPTIMIZED)
        others = {name: time for name in (BASELINE, *PEERS) if (time := row.time_ns(name))}
        if own and others:
            rival = min(others, key=lambda name: others[name])
            found.append(PeerComparison(row, own / others[rival], rival))
    return sorted(found, key=lambda one: -one.ratio)


def by_op(cases: Sequence[PeerComparison]) -> list[OpCoverage]:
    """One line per op, the op with the worst case first."""
    ops: dict[str, list[PeerComparison]] = {}
    for one in cases:
        ops.setdefault(one.row.case.op, []).append(one)
    return [
        OpCoverage(
            op,
            len(members),
            median(one.ratio for one in members),
            members[0],
            sum(one.ratio > 1.10 for one in members) / len(members),
            sum(one.ratio > CLIFF for one in members),
        )
        for op, members in ops.items()
    ]


def figure(cases: Sequence[PeerComparison]) -> str | None:
    """Ratio over bytes, a series per op; None without cases."""
    if not cases:
        return None
    names = sorted({one.row.case.op for one in cases})
    traces = []
    for place, name in enumerate(names):
        some = [one for one in cases if one.row.case.op == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": literal(name, 40),
                "meta": {"slot": f"kernel{place % COLOURS}"},
                "x": [max(one.row.bytes, 1) for one in some],
                "y": [one.ratio for one in some],
                "text": [literal(f"{one.row.case.name} · {one.row.case.dtype}", 80) for one in some],
                "customdata": [[time_text(one.time_ns), literal(one.rival, 40)] for one in some],
                "hovertemplate": "%{text}<br>%{x:,.3~s}B, %{y:.3f} times %{customdata[1]}, %{customdata[0]}"
                "<extra>%{fullData.name}</extra>",
                "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 8},
            }
        )
    return as_json(
        traces,
        xaxis={"type": "log", "title": {"text": "bytes of the least traffic"}},
        yaxis={"type": "log", "title": {"text": "time ÷ fastest other implementation"}},
        meta={"slot": "figure"},
    )
