"""The page of explored cases: ratio to the fastest other implementation over size, per op, and the worst cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from opgauge.web import coverage
from opgauge.web.comparison import resolve
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.last_runs import replaced_devices
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.rows import devices_of, first_device, latest_rows, rows_of, runs_of
from opgauge.web.unknown import LATEST, refuse_unknown, refuse_unknown_device
from opgauge.web.view import Paging, page

DRAWN = 5000
"""Most cases in a figure."""
router = APIRouter()


@router.get("/coverage")
def coverage_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    run: Text = "",
    device: Word = "",
    op: Word = "",
    number: Number = 1,
) -> Response:
    """The latest run of each case on `device` (a GPU where there is one), or one `run`, of all ops or one."""

    def values() -> Mapping[str, Any]:
        rows = rows_of(reader, resolve(reader, run)) if run else latest_rows(reader)
        where = f"in run {run}" if run else LATEST
        refuse_unknown_device(device, devices_of(rows), where)
        refuse_unknown("op", op, (row.case.op for row in rows), where)
        on = device or first_device(rows, replaced_devices(reader))
        there = coverage.compared(row for row in rows if row.device.slug == on)
        shown = [one for one in there if op in {"", one.row.case.op}]
        paging = Paging(number, len(shown))
        return {
            "chosen": {"run": run, "device": on, "op": op},
            "any": bool(rows),
            "devices": devices_of(rows),
            "ops": coverage.by_op(there),
            "figure_json": coverage.figure(shown[:DRAWN]),
            "drawn": DRAWN,
            "cases": shown[paging.start : paging.stop],
            "paging": paging,
            "runs": runs_of(one.row for one in shown),
        }

    return page(request, cache, "coverage.html", values)
