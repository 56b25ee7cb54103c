"""Overview of every op on every device, by the latest run of each of its cases there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo
from opgauge.web.reader import Reader, Recent
from opgauge.web.rows import CaseLevels, geometric_mean, latest_rows

SPARK = 24
"""Runs in a sparkline."""


@dataclass(frozen=True, slots=True)
class OpStanding:
    """An op on a device: geometric means over its cases, median share of the ceiling.

    run: the latest of those that the cases are from. speedup: over the baseline. peers: speedup over each. over_peers:
    over the fastest of each case. spark: time of the optimized kernels by run, 1 being their usual time. bad: cases
    that failed.
    """

    op: str
    device: DeviceInfo
    run: RunInfo
    cases: int
    bad: int
    speedup: float | None
    share: float | None
    peers: Mapping[str, float] = field(default_factory=dict)
    over_peers: float | None = None
    spark: tuple[float, ...] = ()


def standings(reader: Reader, recent: Recent) -> list[OpStanding]:
    """One per op and device, by name, over the latest run of each case."""
    found: dict[tuple[str, str], list[CaseLevels]] = {}
    for row in latest_rows(reader):
        found.setdefault((row.case.op, row.device.slug), []).append(row)
    sparks = _sparks(recent)
    places = {run.key: place for place, run in enumerate(recent.runs)}
    return [_standing(rows, sparks.get(key, ()), places) for key, rows in sorted(found.items())]


def _standing(rows: list[CaseLevels], spark: tuple[float, ...], places: Mapping[int, int]) -> OpStanding:
    shares = [share for share in (row.share() for row in rows) if share]
    peers = {peer: geometric_mean(row.speedup(peer) for row in rows) for peer in PEERS}
    return OpStanding(
        rows[0].case.op,
        rows[0].device,
        max((row.run for row in rows), key=lambda run: places[run.key]),
        cases=len(rows),
        bad=sum(bool(row.bad) for row in rows),
        speedup=geometric_mean(row.speedup(BASELINE) for row in rows),
        share=median(shares) if shares else None,
        peers={peer: ratio for peer, ratio in peers.items() if ratio},
        over_peers=geometric_mean(row.over_best_peer for row in rows),
        spark=spark,
    )


def _sparks(recent: Recent) -> dict[tuple[str, str], tuple[float, ...]]:
    """Times of the optimized kernels by run, each against its own usual time."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for (case_id, implementation, slug), levels in recent.series.items():
        times = [(level.run.key, level.median_ns) for level in levels if level.median_ns]
        if implementation != OPTIMIZED or not times:
            continue
        usual = median(time for _, time in times)
        by_run = found.setdefault((recent.cases[case_id].op, slug), {})
        for run, time in times:
            by_run.setdefault(run, []).append(time / usual)
    order = {run.key: place for place, run in enumerate(recent.runs)}
    return {
        key: tuple(geometric_mean(by_run[run]) or 1.0 for run in sorted(by_run, key=order.__getitem__)[-SPARK:])
        for key, by_run in found.items()
    }
