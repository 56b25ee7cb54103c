"""All ops below the roofs of a device: the kernels of one run, or of the latest run of each case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from opgauge.harness.result.summary import OPTIMIZED
from opgauge.web import roofline
from opgauge.web.comparison import resolve
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.last_runs import replaced_devices
from opgauge.web.pages.query import Number, Text, Word
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
from opgauge.web.unknown import LATEST, refuse_unknown_device
from opgauge.web.view import Paging, page

DRAWN = 2000
"""Most cases in a figure."""
router = APIRouter()


@router.get("/roofline")
def roofline_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    run: Text = "",
    device: Word = "",
    dtype: Word = "",
    implementation: Text = OPTIMIZED,
    number: Number = 1,
) -> Response:
    """The latest run of each case on `device` (a GPU where there is one); or one `run`."""

    def values() -> Mapping[str, Any]:
        rows = rows_of(reader, resolve(reader, run)) if run else latest_rows(reader)
        refuse_unknown_device(device, devices_of(rows), f"in run {run}" if run else LATEST)
        on = device or first_device(rows, replaced_devices(reader))
        there = [row for row in rows if row.device.slug == on]
        chosen = {"run": run, "device": on, "dtype": dtype, "implementation": implementation}
        return {
            "chosen": chosen,
            "any": bool(rows),
            "devices": devices_of(rows),
            "dtypes": sorted({row.case.dtype for row in there}),
            "names": implementations(there),
            **_shown([row for row in there if dtype in {"", row.case.dtype}], implementation, number),
        }

    return page(request, cache, "roofline.html", values)


def _shown(rows: list[CaseLevels], implementation: str, number: int) -> Mapping[str, Any]:
    counted = roofline.counted(rows)
    points = roofline.points_of(sort_rows(counted, "name"), implementation)
    paging = Paging(number, len(points))
    return {
        "figure_json": roofline.by_op(points[:DRAWN], sorted({row.case.op for row in counted})),
        "drawn": DRAWN,
        "points": points[paging.start : paging.stop],
        "paging": paging,
        "runs": runs_of(point.row for point in points),
        "without_work": sorted((_by_op(rows) - _by_op(counted)).items()),
        "without_time": len(counted) - len(points),
    }


def _by_op(rows: list[CaseLevels]) -> Counter[str]:
    return Counter(row.case.op for row in rows)
