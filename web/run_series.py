"""Contribution of one run to the series of the recent history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from opgauge.harness.store.queries import CaseInfo, StoredPoint
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo
from opgauge.web.level import Level, SeriesKey, level_of


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Devices, cases, levels and least work of one run, made once per run."""

    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    cases: dict[str, CaseInfo] = field(default_factory=dict)
    levels: dict[SeriesKey, Level] = field(default_factory=dict)
    work: dict[tuple[str, str], StoredPoint] = field(default_factory=dict)


def series_of(
    run: RunInfo,
    points: Iterable[StoredPoint],
    infos: Mapping[int, CaseInfo],
    find_device: Callable[[RunInfo, str], DeviceInfo],
) -> RunSeries:
    """The levels of a run; points of unknown cases are left out."""
    series = RunSeries()
    slugs: dict[str, str] = {}
    blocks: dict[SeriesKey, list[StoredPoint]] = {}
    for point in points:
        info = infos.get(point.case_key)
        if info is None:
            continue
        if point.device not in slugs:
            device = find_device(run, point.device)
            slugs[point.device] = device.slug
            series.devices[device.slug] = device
        series.cases[info.case_id] = info
        blocks.setdefault((info.case_id, point.implementation, slugs[point.device]), []).append(point)
    for key, found in blocks.items():
        series.levels[key] = level_of(run, found)
        series.work[key[0], key[2]] = found[0]
    return series
