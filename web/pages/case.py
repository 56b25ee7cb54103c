"""A case: its history, raw samples, kernels, memory, environment, YAML, and how to measure it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, HTTPException, Path, Request, Response

from harness.store import queries
from harness.store.queries import CaseInfo, Detail, RunInfo
from harness.summary import BASELINE, OPTIMIZED
from web import charts
from web.comparison import resolve
from web.deps import CacheOf, ReaderOf
from web.pages.query import Number, Text, Word
from web.profile import kernel_times, number
from web.reader import DeviceInfo, Level, Reader, level_of
from web.regression import change_points
from web.rows import floor_ns
from web.view import page

POINTS = 6000
DRAWN_BLOCKS = 40
CHANGES_OF = 6
router = APIRouter()


@router.get("/cases/{case_id}")
def case_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    case_id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")],
    device: Word = "",
    run: Text = "",
    last: Number = 100,
    of: Text = "",
) -> Response:
    """One case on one device: over the `last` runs, in `run` in full, with the samples `of` one implementation."""

    def values() -> Mapping[str, Any]:
        return _values(reader, case_id, device, run, min(last, 1000), of)

    return page(request, cache, "case.html", values)


def _values(reader: Reader, case_id: str, device: str, run: str, last: int, of: str) -> Mapping[str, Any]:
    written = queries.find_case(reader.engine, case_id)
    if not written:
        raise HTTPException(404, f"no case {case_id}")
    case = written[-1]
    keys = [one.key for one in written]
    runs = {one.key: one for one in reader.runs()}
    known = [(runs[key], name) for key, name in queries.list_case_runs(reader.engine, keys) if key in runs]
    if not known:
        raise HTTPException(404, f"no results of case {case_id}; try: {_command(case)}")
    devices = {info.slug: info for owner, name in known for info in [reader.device(owner, name)]}
    chosen = devices.get(device) or _first_device(devices.values())
    mine = [owner for owner, name in known if reader.device(owner, name).slug == chosen.slug]
    mine.sort(key=lambda owner: (owner.started, owner.key))
    here = _history(reader, keys, mine[-last:], chosen)
    series = _series(here)
    asked = resolve(reader, run) if run else here[-1][0]
    changes = {name: change_points(levels) for name, levels in list(series.items())[:CHANGES_OF]}
    return {
        "case": case,
        "device": chosen,
        "devices": sorted(devices.values(), key=lambda one: one.slug),
        "runs": list({one.key: one for one, _ in reversed(here)}.values()),
        "run": asked,
        "last": last,
        "history": charts.history(series, _quartiles(here), changes),
        "changes": [(name, *change) for name, listed in changes.items() for change in listed],
        "yaml": _yaml(case),
        "command": _command(case),
        **_in_run(reader, written, case, chosen, asked, of),
    }


def _first_device(devices: Iterable[DeviceInfo]) -> DeviceInfo:
    """A GPU rather than a CPU."""
    return min(devices, key=lambda one: (one.name == "cpu", one.name, one.slug))


def _history(
    reader: Reader, keys: Sequence[int], runs: Sequence[RunInfo], device: DeviceInfo
) -> list[tuple[RunInfo, Detail]]:
    """What these runs say of the case on one device, oldest first."""
    by_key = {run.key: run for run in runs}
    found = queries.list_history(reader.engine, keys, list(by_key), device.name, POINTS)
    return sorted(((by_key[one.point.run_key], one) for one in found), key=lambda pair: (pair[0].started, pair[0].key))


def _series(here: Sequence[tuple[RunInfo, Detail]]) -> dict[str, list[Level]]:
    blocks: dict[str, dict[int, list[Detail]]] = {}
    runs = {run.key: run for run, _ in here}
    for run, one in here:
        blocks.setdefault(one.point.implementation, {}).setdefault(run.key, []).append(one)
    order = sorted(blocks, key=lambda name: (name != OPTIMIZED, name != BASELINE, name))
    return {
        name: [level_of(runs[key], [one.point for one in found]) for key, found in blocks[name].items()]
        for name in order
    }


def _quartiles(here: Sequence[tuple[RunInfo, Detail]]) -> dict[tuple[int, str], tuple[float, float]]:
    found = {}
    for run, one in here:
        quantiles = one.data.get("quantiles_ns")
        if isinstance(quantiles, list) and len(quantiles) == 4:
            found[run.key, one.point.implementation] = (float(quantiles[1]), float(quantiles[2]))
    return found


def _in_run(
    reader: Reader, written: Sequence[CaseInfo], case: CaseInfo, device: DeviceInfo, run: RunInfo, of: str
) -> Mapping[str, Any]:
    details = [
        one
        for one in queries.list_details(reader.engine, run.key, case_keys=[info.key for info in written])
        if one.point.device == device.name
    ]
    by_name: dict[str, list[Detail]] = {}
    for one in details:
        by_name.setdefault(one.point.implementation, []).append(one)
    drawn = of if of in by_name else next((name for name in (OPTIMIZED, BASELINE, *by_name) if name in by_name), "")
    shown = by_name.get(drawn, [])[:DRAWN_BLOCKS]
    found = queries.load_samples(reader.engine, [one.point.key for one in shown])
    samples = {one.point.block: found[one.point.key] for one in shown if found.get(one.point.key)}
    kernels = {one.point.implementation: seen for one in details if (seen := kernel_times(one.data))}
    ceilings = reader.ceilings(run).get(device.name)
    return {
        "trials": [_Trial(blocks, run, case, ceilings) for blocks in by_name.values()],
        "drawn": drawn,
        "distribution": charts.distribution(drawn, samples) if samples else None,
        "kernels": kernels,
        "kernel_bars": charts.kernel_bars(kernels) if kernels else None,
        "ceilings": ceilings,
        "hard": run.environment.hard_of(device.name),
        "soft": {key: value for key, value in run.environment.soft.items() if "." not in key or _is_of(key, device)},
    }


def _is_of(key: str, device: DeviceInfo) -> bool:
    return key.startswith(f"{device.name}.")


class _Trial:
    """An implementation in a run, its blocks taken together; what has no noise is of the first."""

    def __init__(self, blocks: Sequence[Detail], run: RunInfo, case: CaseInfo, ceilings: Any) -> None:
        first = blocks[0]
        self.name = first.point.implementation
        self.level = level_of(run, [one.point for one in blocks])
        self.blocks = len(blocks)
        self.reasons = list(dict.fromkeys(one.reason for one in blocks if one.reason))
        self.check = first.data.get("check") or {}
        self.measurement = first.data.get("measurement") or {}
        quantiles = [one.data.get("quantiles_ns") for one in blocks]
        known = [found for found in quantiles if isinstance(found, list) and len(found) == 4]
        self.quartiles = (min(found[1] for found in known), max(found[2] for found in known)) if known else None
        self.samples = sum(found[3] for found in known)
        time = self.level.median_ns
        floor = floor_ns(first.point.bytes, first.point.flops, case.dtype, ceilings)
        self.share = floor / time if floor and time else None
        self.gbps = first.point.bytes / time if time and first.point.bytes else None
        self.host_gap_ns = _host_gap(first.data, time)


def _host_gap(data: Mapping[str, Any], time: float | None) -> float | None:
    seen = number(data.get("profile"), "time_ns")
    return time - seen if seen and time else None


def _yaml(case: CaseInfo) -> str:
    """The case as a case file has it."""
    data = case.data
    keys = ("name", "tags", "shapes", "dtype", "params", "inputs", "note", "published", "gate")
    entry = {key: _numbers(data[key]) for key in keys if data.get(key)}
    document = {"op": case.op, "cases": [entry]}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def _numbers(value: Any) -> Any:
    """Infinities and NaN as numbers again, so that YAML writes them as such."""
    if isinstance(value, Mapping):
        return {str(key): _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def _command(case: CaseInfo) -> str:
    """What measures this case again."""
    pattern = "".join(f"[{letter}]" if letter in "[*?" else letter for letter in case.name)
    return f"opgauge run --op {shlex.quote(case.op)} --name {shlex.quote(pattern)} --dtype {shlex.quote(case.dtype)}"
