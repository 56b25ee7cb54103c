"""A case: its history, raw samples, kernels, memory, environment, YAML, and how to measure it again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import yaml
from fastapi import APIRouter, HTTPException, Path, Request, Response

from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS, bound_of, remarks
from opgauge.harness.store import past, queries
from opgauge.harness.store.history import gives_wrong_time
from opgauge.harness.store.past import Past, PastTime
from opgauge.harness.store.queries import CaseInfo, Detail
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web import charts
from opgauge.web.comparison import resolve
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.devices import DeviceInfo
from opgauge.web.history_figure import history_figure, timeline
from opgauge.web.level import Level, level_of
from opgauge.web.marks import HistoryMark, marks_of
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.profile import kernel_times, number
from opgauge.web.reader import Reader
from opgauge.web.regression import change_points
from opgauge.web.trends import resource_figures
from opgauge.web.unknown import refuse_unknown_device
from opgauge.web.view import page

DRAWN_RUNS = 120
"""Runs in one history: more are not told apart on a screen."""
DRAWN_BLOCKS = 40
DRAWN_BESIDE = 40
CHANGES_OF = 6
OFFERED = 60
"""Processes and runs beside the history that are drawn, implementations with change points, runs offered."""
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The one in C, where PyYAML was built with it: the other takes as long as the rest of the page."""
Row = TypeVar("Row", Past, PastTime)
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
    written = reader.forms_of(case_id)
    if not written:
        raise HTTPException(404, f"no case {case_id}")
    # name and notes of the newest commit of this project, even if another project stored the case too
    case = reader.recent().cases.get(case_id, written[-1])
    keys = [one.key for one in written]
    places = reader.places(keys)
    if not places or (device and device not in places):
        places = {**reader.places_beside(keys), **places}
    if not places:
        text = f"no results of case {case_id} in the history of this project"
        raise HTTPException(404, text if case.op == "imported" else f"{text}; try: {_command(case)}")
    refuse_unknown_device(device, [one for one, _ in places.values()], "with results of this case")
    chosen, mine = places.get(device) or _first_place(places)
    recent = mine[-last:]
    others = reader.beside(keys, chosen)[-DRAWN_BESIDE:]
    asked = resolve(reader, run) if run else (recent or others)[-1]
    kept = drawn = thinned(recent, DRAWN_RUNS)
    marks: list[HistoryMark] | None = None
    if len(drawn) < len(recent):
        # sought in all runs, drawn in some: a step must not get lost between those that are drawn
        own = _blocks(past.list_times(reader.engine, keys, [one.key for one in recent], chosen.name, PEERS))
        marks = _marks(reader, case_id, chosen, {name: _levels(recent, every) for name, every in own.items()})
        keep = {one.key for one in (*drawn, *(run for mark in marks for run in (mark.before, mark.run)))}
        kept = [run for run in recent if run.key in keep]
    found = past.list_history(reader.engine, keys, [one.key for one in (*others, *kept)], chosen.name)
    blocks = _blocks(found)
    series, beside = ({name: _levels(runs, every) for name, every in blocks.items()} for runs in (kept, others))
    if marks is None:
        marks = _marks(reader, case_id, chosen, {name: series[name] for name in series if name not in PEERS})
    times = timeline(reader)
    drawn_history = history_figure(series, _quartiles(found, {one.key for one in kept}), marks, times, beside)
    memory, launches = resource_figures(found, drawn, times)
    offered = (*([asked] if run else []), *drawn[: -OFFERED - 1 : -1], *others[::-1])
    return {
        "case": case,
        "device": chosen,
        "devices": sorted((one for one, _ in places.values()), key=lambda one: one.slug),
        "runs": list({one.key: one for one in offered}.values()),
        "run": asked,
        "last": last,
        "wrong_times": sum(map(gives_wrong_time, recent)),
        "every": -(-len(recent) // (len(drawn) or 1)),
        "history": drawn_history,
        "hidden": '"legendonly"' in drawn_history,
        "memory": memory,
        "launches": launches,
        "marks": marks[::-1],
        "yaml": _yaml(case),
        "command": "" if case.op == "imported" else _command(case),
        **_in_run(reader, written, case, chosen, asked, of),
    }


def _marks(
    reader: Reader, case_id: str, device: DeviceInfo, series: Mapping[str, Sequence[Level]]
) -> list[HistoryMark]:
    """Marks of the regressions, and of the change points of the first series."""
    measured = [(name, levels) for name, levels in series.items() if levels]
    changes = {name: change_points(levels) for name, levels in measured[:CHANGES_OF]}
    return marks_of(reader, case_id, device, changes)


def _first_place(places: Mapping[str, tuple[DeviceInfo, list[RunInfo]]]) -> tuple[DeviceInfo, list[RunInfo]]:
    """The GPU with the most runs, or else a CPU."""
    return min(
        places.values(), key=lambda place: (place[0].name == "cpu", -len(place[1]), place[0].name, place[0].slug)
    )


def thinned(runs: Sequence[RunInfo], most: int) -> list[RunInfo]:
    """No more than `most` of them at even steps, the last always."""
    step = -(-len(runs) // most) or 1
    return list(runs[::-1][::step][::-1])


def _blocks(history: Iterable[Row]) -> dict[str, dict[int, list[Row]]]:
    """Results by implementation and run: the optimized kernel first, then the baseline."""
    found: dict[str, dict[int, list[Row]]] = {}
    for one in history:
        found.setdefault(one.implementation, {}).setdefault(one.run_key, []).append(one)
    return {name: found[name] for name in sorted(found, key=lambda name: (name != OPTIMIZED, name != BASELINE, name))}


def _levels(runs: Sequence[RunInfo], blocks: Mapping[int, Sequence[Past | PastTime]]) -> list[Level]:
    """Levels of one implementation, in the order of the runs."""
    return [level_of(run, blocks[run.key]) for run in runs if run.key in blocks]


def _quartiles(history: Iterable[Past], runs: Collection[int]) -> dict[tuple[int, str], tuple[float, float]]:
    return {
        (one.run_key, one.implementation): (one.low_ns, one.high_ns)
        for one in history
        if one.run_key in runs and one.low_ns is not None and one.high_ns is not None
    }


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
        measurement = first.data.get("measurement") or {}
        self.hot_ns, self.peak_bytes = number(measurement, "hot_ns"), number(measurement, "peak_bytes")
        quantiles = [one.data.get("quantiles_ns") for one in blocks]
        known = [found for found in quantiles if isinstance(found, list) and len(found) == 4]
        self.quartiles = (min(found[1] for found in known), max(found[2] for found in known)) if known else None
        self.samples = sum(found[3] for found in known)
        time = self.level.median_ns
        extra = first.data.get("extra") or {}
        work = (first.point.bytes, first.point.flops)
        bound = bound_of(ceilings, *work, case.dtype, extra) if ceilings and time else None
        self.share = bound.time_ns / time if bound and time else None
        self.bound = bound.peak if bound else None
        self.remarks = remarks(extra, measurement)
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
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, default_flow_style=None))


def _numbers(value: Any) -> Any:
    """Infinities and NaN as numbers again, so that YAML writes them as such."""
    if isinstance(value, Mapping):
        return {str(key): _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def _command(case: CaseInfo) -> str:
    """The command that measures this case again."""
    pattern = "".join(f"[{letter}]" if letter in "[*?" else letter for letter in case.name)
    return f"opgauge run --op {shlex.quote(case.op)} --name {shlex.quote(pattern)} --dtype {shlex.quote(case.dtype)}"
