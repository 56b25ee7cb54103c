"""A case on a device in one run, its implementations side by side: what tables and charts are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import exp, log
from statistics import fmean, median

from opgauge.harness.result.ceilings import HALF, Ceilings
from opgauge.harness.result.summary import ALLOWED, BASELINE, NOISE, OPTIMIZED, PEERS, block_ratios, is_coarse
from opgauge.harness.store.queries import CaseInfo, StoredPoint
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo
from opgauge.web.level import GRAVE, Level, level_of
from opgauge.web.reader import Reader, Recent


@dataclass(frozen=True, slots=True)
class CaseLevels:
    """Levels by implementation.

    bytes, flops: the op's least work. written: share of the bytes that is written. ceilings: what the device reached
    in this run. earlier: where the run lacks an implementation or the optimized one, the levels of the newest run that
    has both, by implementation.
    """

    run: RunInfo
    case: CaseInfo
    device: DeviceInfo
    levels: Mapping[str, Level]
    bytes: int
    flops: int
    written: float
    ceilings: Ceilings | None
    earlier: Mapping[str, Mapping[str, Level]] = field(default_factory=dict)

    def time_ns(self, implementation: str) -> float | None:
        """Median over blocks; None where there is none, or it is not ok."""
        level = self.levels.get(implementation)
        return None if level is None else level.median_ns

    def speedup(self, over: str, of: str = OPTIMIZED) -> float | None:
        """Time of `over` divided by time of `of`: above 1, `of` is the faster one."""
        return self._ratio(over, (of,))

    @property
    def over_best_peer(self) -> float | None:
        """Speedup over the fastest peer."""
        ratio = self._ratio(OPTIMIZED, PEERS)
        return 1 / ratio if ratio else None

    @property
    def is_behind(self) -> bool:
        """Whether a peer is faster by more than noise, and the time tells."""
        ratio = self.over_best_peer
        return (
            ratio is not None
            and ratio * NOISE * ALLOWED["cold"] < 1
            and not is_coarse(self.time_ns(OPTIMIZED), self.device.name)
        )

    def _ratio(self, above: str, below: Sequence[str]) -> float | None:
        levels = self._levels_with({above, *below} - {OPTIMIZED})
        blocks: dict[int, dict[str, float]] = {}
        for name in (above, *below):
            for block, time in _by_block(levels.get(name)):
                blocks.setdefault(block, {})[name] = time
        ratios = block_ratios(blocks.values(), above, below)
        return median(ratios) if ratios else None

    def _levels_with(self, others: Collection[str]) -> Mapping[str, Level]:
        """Levels of this run; if it did not measure both sides, of the newest run that did."""
        best = self.levels.get(OPTIMIZED)
        if best is not None and (best.status in GRAVE or any(name in self.levels for name in others)):
            return self.levels
        found = [self.earlier[name] for name in others if name in self.earlier]
        return max(found, key=lambda one: one[OPTIMIZED].run.started, default=self.levels)

    def older_run(self, *others: str) -> RunInfo | None:
        """The run from which the ratio to other implementations is, if it is not this one."""
        run = next((level.run for level in self._levels_with(others).values()), self.run)
        return None if run.key == self.run.key else run

    @property
    def floor_ns(self) -> float | None:
        """The least time that the measured ceilings allow."""
        if self.ceilings is None:
            return None
        return self.ceilings.floor_ns(self.bytes, self.flops, self.case.dtype, written=self.written)

    def share(self, implementation: str = OPTIMIZED) -> float | None:
        """How near to the ceiling, 0 to 1."""
        floor, time = self.floor_ns, self.time_ns(implementation)
        return floor / time if floor and time else None

    @property
    def bad(self) -> list[str]:
        """Implementations that failed."""
        return [name for name, level in self.levels.items() if level.status in GRAVE]


def _by_block(level: Level | None) -> tuple[tuple[int, float], ...]:
    """Times of an implementation, none where it failed; of a single block as of the first."""
    if level is None or not level.median_ns:
        return ()
    return level.by_block or ((0, level.median_ns),)


def rows_of(reader: Reader, run: RunInfo, op: str | None = None) -> list[CaseLevels]:
    """The rows of a run, in its order."""
    points = reader.points_of(run, op)
    infos = reader.cases({point.case_key for point in points})
    ceilings = reader.ceilings(run)
    found: dict[tuple[str, str], dict[str, list[StoredPoint]]] = {}
    cases: dict[str, CaseInfo] = {}
    for point in points:
        info = infos.get(point.case_key)
        if info is None or (op is not None and info.op != op):
            continue
        cases[info.case_id] = info
        found.setdefault((info.case_id, point.device), {}).setdefault(point.implementation, []).append(point)
    devices = {name: reader.device(run, name) for name in {name for _, name in found}}
    points_by_case = {key: next(iter(one.values()))[0] for key, one in found.items()}
    written = reader.written_shares(points_by_case.values())
    rows = []
    for (case_id, name), by_implementation in found.items():
        levels = {implementation: level_of(run, blocks) for implementation, blocks in by_implementation.items()}
        first = points_by_case[case_id, name]
        work = (first.bytes, first.flops, written.get(first.case_key, HALF))
        rows.append(CaseLevels(run, cases[case_id], devices[name], levels, *work, ceilings.get(name)))
    return rows


def latest_rows(reader: Reader) -> list[CaseLevels]:
    """Every case on every device, each from the newest commit whose runs have it there."""
    return reader.cache.get("latest rows", lambda: _latest(reader, reader.recent()))


def _latest(reader: Reader, recent: Recent) -> list[CaseLevels]:
    order = {run.key: place for place, run in enumerate(recent.runs)}
    found: dict[tuple[str, str], dict[str, Level]] = {}
    for (case_id, implementation, slug), levels in recent.series.items():
        found.setdefault((case_id, slug), {})[implementation] = levels[-1]
    written = reader.written_shares(recent.work.values())
    rows = []
    for (case_id, slug), by_name in found.items():
        run = max((level.run for level in by_name.values()), key=lambda one: order[one.key])
        levels_there = {name: level for name, level in by_name.items() if level.run.key == run.key}
        missing = by_name if OPTIMIZED not in levels_there else by_name.keys() - levels_there.keys()
        earlier = {name: _beside(recent, case_id, name, slug) for name in missing if name != OPTIMIZED}
        device, first = recent.devices[slug], recent.work[case_id, slug]
        work = (first.bytes, first.flops, written.get(first.case_key, HALF))
        reached = reader.ceilings(run).get(device.name)
        known = {name: levels for name, levels in earlier.items() if levels}
        rows.append(CaseLevels(run, recent.cases[case_id], device, levels_there, *work, reached, known))
    return rows


def _beside(recent: Recent, case_id: str, implementation: str, slug: str) -> dict[str, Level]:
    """Levels of an implementation and the optimized one in the newest run that has both; empty if none has."""
    own = recent.series[case_id, implementation, slug]
    optimized = {level.run.key: level for level in recent.series.get((case_id, OPTIMIZED, slug), ())}
    both = next((level for level in reversed(own) if level.run.key in optimized), None)
    return {implementation: both, OPTIMIZED: optimized[both.run.key]} if both else {}


def implementations(rows: Iterable[CaseLevels]) -> list[str]:
    """Implementations that occur: baseline, our own variants, optimized, peers."""
    names = {name for row in rows for name in row.levels}
    ours = sorted(names - {BASELINE, OPTIMIZED, *PEERS})
    return [name for name in (BASELINE, *ours, OPTIMIZED, *PEERS) if name in names]


def devices_of(rows: Iterable[CaseLevels]) -> list[DeviceInfo]:
    """Devices of the rows, by their slugs."""
    return sorted({row.device.slug: row.device for row in rows}.values(), key=lambda one: one.slug)


def first_device(rows: Iterable[CaseLevels], replaced: Collection[str] = ()) -> str:
    """The slug of the GPU with the most rows, or else of a CPU: times of both in one figure say little.

    Devices that were replaced come after the others. Of several with equally many rows the one with the newest run;
    empty for no rows.
    """
    found: dict[DeviceInfo, list[CaseLevels]] = {}
    for row in rows:
        found.setdefault(row.device, []).append(row)

    def rank(one: DeviceInfo) -> tuple[bool, bool, int, datetime, str]:
        newest = max(row.run.started for row in found[one])
        return one.name != "cpu", one.slug not in replaced, len(found[one]), newest, one.slug

    return max(found, key=rank).slug if found else ""


def runs_of(rows: Iterable[CaseLevels]) -> list[RunInfo]:
    """Runs of the rows, newest first."""
    return sorted({row.run.key: row.run for row in rows}.values(), key=lambda run: run.started, reverse=True)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the known values; None if there are none."""
    known = [log(value) for value in values if value]
    return exp(fmean(known)) if known else None


def sort_rows(rows: Sequence[CaseLevels], order: str) -> list[CaseLevels]:
    """By name; `speedup`, `peer`: least over baseline or best peer first; `time`: longest; `share`: least."""
    keys = {
        "speedup": lambda row: row.speedup(BASELINE) or float("inf"),
        "peer": lambda row: row.over_best_peer or float("inf"),
        "time": lambda row: -(row.time_ns(OPTIMIZED) or 0.0),
        "share": lambda row: row.share() or float("inf"),
    }
    by_name = sorted(rows, key=lambda row: (row.case.op, row.case.name, row.device.slug))
    return sorted(by_name, key=keys[order]) if order in keys else by_name
