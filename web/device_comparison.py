"""Devices beside each other: time of the optimized kernels on cases that both measured, and share of the ceiling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from opgauge.harness.result.ceilings import Ceilings
from opgauge.web.devices import DeviceInfo
from opgauge.web.rows import CaseLevels, geometric_mean


@dataclass(frozen=True, slots=True)
class DeviceStanding:
    """An op on a device. speedup: over the reference device, geometric mean over the `common` cases that both have.

    share: median share of the ceiling over all `cases` of the op on this device.
    """

    cases: int
    common: int
    speedup: float | None
    share: float | None


def reached_peaks(rows: Iterable[CaseLevels]) -> dict[str, Ceilings]:
    """Achieved peaks by slug of the device, of the latest run that has any."""
    latest = sorted((row for row in rows if row.ceilings), key=lambda row: row.run.started)
    return {row.device.slug: row.ceilings for row in latest if row.ceilings}


def device_standings(
    rows: Iterable[CaseLevels], devices: Sequence[DeviceInfo], reference: str
) -> dict[str, dict[str, DeviceStanding]]:
    """Standings by op and slug of the device, for ops by name; `reference` is the slug of the reference device."""
    found: dict[str, dict[str, list[CaseLevels]]] = {}
    for row in rows:
        found.setdefault(row.case.op, {}).setdefault(row.device.slug, []).append(row)
    return {
        op: {
            device.slug: _standing(there[device.slug], _times(there.get(reference, ())))
            for device in devices
            if device.slug in there
        }
        for op, there in sorted(found.items())
    }


def case_times(rows: Iterable[CaseLevels], op: str) -> list[dict[str, CaseLevels]]:
    """Rows of each case of an op by slug of the device, by name of the case."""
    found: dict[str, dict[str, CaseLevels]] = {}
    for row in sorted(rows, key=lambda row: (row.case.name, row.case.dtype)):
        if row.case.op == op:
            found.setdefault(row.case.case_id, {})[row.device.slug] = row
    return list(found.values())


def _times(rows: Iterable[CaseLevels]) -> dict[str, float]:
    return {row.case.case_id: time for row in rows if (time := row.time_ns("optimized"))}


def _standing(rows: Sequence[CaseLevels], reference: Mapping[str, float]) -> DeviceStanding:
    mine = _times(rows)
    common = [reference[case_id] / time for case_id, time in mine.items() if case_id in reference]
    shares = [share for row in rows if (share := row.share())]
    return DeviceStanding(len(rows), len(common), geometric_mean(common), median(shares) if shares else None)
