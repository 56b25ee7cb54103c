"""An op: its cases as a table and as bars, the roofline, what is right and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response

from opgauge.harness.result.summary import PEERS
from opgauge.harness.store import queries
from opgauge.harness.store.queries import Detail
from opgauge.web import charts, roofline
from opgauge.web.comparison import resolve
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.history_figure import timeline
from opgauge.web.last_runs import replaced_devices
from opgauge.web.level import GRAVE
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.reader import Reader
from opgauge.web.rows import (
    CaseLevels,
    devices_of,
    first_device,
    implementations,
    latest_rows,
    rows_of,
    runs_of,
    sort_rows,
)
from opgauge.web.trends import op_trend, trend_figure
from opgauge.web.unknown import refuse_unknown, refuse_unknown_device
from opgauge.web.view import Paging, page

SIZE = 40
DRAWN = 24
"""Cases of a page, and those in its figure."""
Order = Literal["name", "speedup", "peer", "time", "share"]
router = APIRouter()


class CaseFilters(NamedTuple):
    """Filters of an op's cases; empty ones choose all. q: part of the name."""

    dtype: str
    tag: str
    q: str


def case_filters(dtype: Word = "", tag: Text = "", q: Text = "") -> CaseFilters:
    """Filters in the address of a page."""
    return CaseFilters(dtype, tag, q)


FiltersOf = Annotated[CaseFilters, Depends(case_filters)]


@router.get("/ops")
def ops(request: Request, cache: CacheOf, reader: ReaderOf) -> Response:
    """Every op that has results."""

    def values() -> Mapping[str, Any]:
        counted: dict[str, int] = {}
        for case in reader.recent().cases.values():
            counted[case.op] = counted.get(case.op, 0) + 1
        return {"ops": sorted(counted.items())}

    return page(request, cache, "ops.html", values)


@router.get("/ops/{op}")
def op_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    op: Annotated[str, Path(max_length=64)],
    filters: FiltersOf,
    run: Text = "",
    device: Word = "",
    temperature: Literal["cold", "hot"] = "cold",
    sort: Order = "name",
    number: Number = 1,
) -> Response:
    """The latest run of each case on `device` (a GPU where there is one) or on `all`; or one `run`."""

    def values() -> Mapping[str, Any]:
        rows = _rows(reader, op, run)
        choices = _choices(rows)
        if device != "all":
            refuse_unknown_device(device, choices["devices"], f"with results of {op}")
        refuse_unknown("dtype", filters.dtype, choices["dtypes"], f"with results of {op}")
        refuse_unknown("tag", filters.tag, choices["tags"], f"of cases of {op}")
        on = device or first_device(rows, replaced_devices(reader))
        chosen = [row for row in rows if _is_chosen(row, on, filters)]
        paging = Paging(number, len(chosen), SIZE)
        shown = sort_rows(chosen, sort)[paging.start : paging.stop]
        return {
            "op": op,
            "rows": shown,
            "paging": paging,
            "chosen": {"run": run, "device": on, **filters._asdict()},
            "sort": sort,
            "temperature": temperature,
            **choices,
            "runs": runs_of(chosen or rows),
            "trend": None if run else trend_figure(op_trend(reader.recent(), op, on), timeline(reader)),
            **_shown(reader, shown, chosen, temperature),
        }

    return page(request, cache, "op.html", values)


def _rows(reader: Reader, op: str, run: str) -> list[CaseLevels]:
    if run:
        rows = rows_of(reader, resolve(reader, run), op)
    else:
        rows = [row for row in latest_rows(reader) if row.case.op == op]
    if not rows:
        raise HTTPException(404, f"no results of {op}{f' in run {run}' if run else ''}; try: opgauge run --op {op}")
    return rows


def _is_chosen(row: CaseLevels, device: str, filters: CaseFilters) -> bool:
    return (
        device in {"all", row.device.slug}
        and filters.dtype in {"", row.case.dtype}
        and (not filters.tag or filters.tag in row.case.data.get("tags", ()))
        and filters.q.lower() in row.case.name.lower()
    )


def _choices(rows: Sequence[CaseLevels]) -> Mapping[str, Any]:
    return {
        "devices": devices_of(rows),
        "dtypes": sorted({row.case.dtype for row in rows}),
        "tags": sorted({str(tag) for row in rows for tag in row.case.data.get("tags", ())}),
    }


def _shown(reader: Reader, shown: list[CaseLevels], chosen: list[CaseLevels], temperature: str) -> Mapping[str, Any]:
    names = implementations(chosen)
    details = _details(reader, shown)
    hot = {key: time for key, one in details.items() if (time := _hot(one))}
    drawn = shown[:DRAWN]
    return {
        "names": names,
        "hot": hot,
        "checks": {key: one.data.get("check") for key, one in details.items()},
        "details": details,
        "bars": charts.bars(drawn, names, hot if temperature == "hot" else None) if drawn else None,
        "roofline": roofline.by_implementation(chosen, names),
        "grave": set(GRAVE),
        "peers": PEERS,
    }


def _details(reader: Reader, shown: Sequence[CaseLevels]) -> dict[tuple[str, str, str], Detail]:
    """Results with their JSON by case, device and implementation; of several blocks the worst."""
    found: dict[tuple[str, str, str], Detail] = {}
    for run in {row.run.key: row.run for row in shown}.values():
        some = {row.case.key: row for row in shown if row.run.key == run.key}
        slugs = {(row.case.key, row.device.name): row.device.slug for row in shown if row.run.key == run.key}
        for one in queries.list_details(reader.engine, run.key, case_keys=list(some)):
            slug = slugs.get((one.point.case_key, one.point.device))
            if slug is None:
                continue
            key = (some[one.point.case_key].case.case_id, slug, one.point.implementation)
            if key not in found or one.point.status in GRAVE:
                found[key] = one
    return found


def _hot(one: Detail) -> float | None:
    measurement = one.data.get("measurement")
    value = measurement.get("hot_ns") if isinstance(measurement, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
