"""Any two runs, commits, branches or devices beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from opgauge.harness.errors import NothingError
from opgauge.web import charts
from opgauge.web.comparison import Compared, compare_runs, device_choices, differences, resolve, sort_compared
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.reader import Reader
from opgauge.web.view import Paging, page

DRAWN = 400
OFFERED = 60
ONE_SIDED = frozenset({"new", "removed", "unsupported", "unmeasured", "skipped"})
"""Kinds without a time on both sides: they are counted, and shown when chosen."""
router = APIRouter()


@router.get("/compare")
def compare_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    base: Text = "",
    head: Text = "",
    base_device: Word = "",
    head_device: Word = "",
    op: Word = "",
    implementation: Text = "",
    verdict: Word = "",
    number: Number = 1,
) -> Response:
    """`base` and `head`: the beginning of a run's id or of a commit, or a branch."""

    def values() -> Mapping[str, Any]:
        given = {"base": base, "head": head, "base_device": base_device, "head_device": head_device}
        chosen = {"op": op, "implementation": implementation, "verdict": verdict}
        offered = reader.runs()[:OFFERED]
        found = {"given": given, "chosen": chosen, "offered": offered, "error": "", "result": None}
        if not base or not head:
            return {
                **found,
                "example": next(((before, run) for run in offered if (before := reader.before(run))), None),
            }
        try:
            return {**found, **_result(reader, given, chosen, number)}
        except NothingError as error:
            return {**found, "error": str(error)}

    return page(request, cache, "compare.html", values)


def _result(reader: Reader, given: Mapping[str, str], chosen: Mapping[str, str], number: int) -> Mapping[str, Any]:
    base, head = resolve(reader, given["base"]), resolve(reader, given["head"])
    devices = {name: given[name] for name in ("base_device", "head_device")}
    everything = sort_compared(compare_runs(reader, base, head, **devices))
    found = [one for one in everything if _is_chosen(one, chosen)]
    paging = Paging(number, len(found))
    drawn = [one for one in found if one.ratio][:DRAWN]
    labels = [f"{one.case.op} · {one.case.name} · {one.case.dtype} · {one.implementation}" for one in drawn]
    spans = [(one.ratio or 1.0, *(one.interval or (None, None))) for one in drawn]
    return {
        "result": found[paging.start : paging.stop],
        "counts": dict(sorted(Counter(one.word for one in everything).items(), key=lambda item: item[0] in ONE_SIDED)),
        "one_sided": sum(one.word in ONE_SIDED for one in everything),
        "paging": paging,
        "base": base,
        "head": head,
        "differences": differences(base.environment, head.environment),
        "devices": device_choices(base, head),
        "ops": sorted({one.case.op for one in everything}),
        "implementations": sorted({one.implementation for one in everything}),
        "chart": charts.ratios(labels, spans, [one.word for one in drawn]) if drawn else None,
    }


def _is_chosen(one: Compared, chosen: Mapping[str, str]) -> bool:
    return (
        chosen["op"] in {"", one.case.op}
        and chosen["implementation"] in {"", one.implementation}
        and (chosen["verdict"] == one.word or (not chosen["verdict"] and one.word not in ONE_SIDED))
    )
