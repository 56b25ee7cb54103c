"""Devices: their achieved peaks, and every op on each of them beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.device_comparison import case_times, device_standings, reached_peaks
from opgauge.web.last_runs import last_runs, replaced_devices
from opgauge.web.pages.query import Number, Word
from opgauge.web.rows import devices_of, first_device, latest_rows
from opgauge.web.unknown import refuse_unknown, refuse_unknown_device
from opgauge.web.view import Paging, page

router = APIRouter()


@router.get("/devices")
def devices_page(
    request: Request, cache: CacheOf, reader: ReaderOf, against: Word = "", op: Word = "", number: Number = 1
) -> Response:
    """All devices against one (a GPU if there is one), by op, or by case of one `op`."""

    def values() -> Mapping[str, Any]:
        rows = latest_rows(reader)
        devices = devices_of(rows)
        refuse_unknown_device(against, devices)
        refuse_unknown("op", op, (row.case.op for row in rows))
        reference = against or first_device(rows, replaced_devices(reader))
        cases = case_times(rows, op) if op else []
        paging = Paging(number, len(cases))
        return {
            "devices": devices,
            "reference": reference,
            "peaks": reached_peaks(rows),
            "last_run": {slug: run for slug, (_, run) in last_runs(reader).items()},
            "standings": device_standings(rows, devices, reference),
            "op": op,
            "cases": cases[paging.start : paging.stop],
            "paging": paging,
        }

    return page(request, cache, "devices.html", values)
