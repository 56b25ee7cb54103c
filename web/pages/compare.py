"""Compare: two runs, commits, branches or devices, or several runs beside one base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from opgauge.harness.errors import NothingError
from opgauge.web import charts
from opgauge.web.comparison import Compared, compare_runs, device_choices, differences, resolve, sort_compared
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.reader import Reader
from opgauge.web.side_by_side import MOST_HEADS, side_by_side
from opgauge.web.unknown import refuse_unknown_filters, refuse_unknown_sides
from opgauge.web.view import Paging, page, render

DRAWN, OFFERED = 400, 60
"""Comparisons in the figure, and runs offered as base and head."""
ONE_SIDED = frozenset({"new", "removed", "unsupported", "unmeasured", "skipped"})
"""Kinds without a time on both sides: they are counted, and shown when chosen."""
Order = Literal["verdict", "case", "implementation", "base", "head", "change"]
ORDERS: Mapping[str, Callable[[Compared], Any]] = {
    "case": lambda one: (one.case.op, one.case.name, one.implementation),
    "implementation": lambda one: (one.implementation, one.case.op, one.case.name),
    "base": lambda one: -(one.base_ns or 0.0),
    "head": lambda one: -(one.head_ns or 0.0),
    "change": lambda one: one.ratio or inf,
}
"""Orders of the table besides that of the verdicts; longest times and largest gains first."""
Heads = Annotated[Sequence[Text], Query(max_length=MOST_HEADS)]
router = APIRouter()


def chosen_by(op: Word = "", implementation: Text = "", verdict: Word = "") -> Mapping[str, str]:
    """Filters of the comparisons; empty ones choose all."""
    return {"op": op, "implementation": implementation, "verdict": verdict}


Chosen = Annotated[Mapping[str, str], Depends(chosen_by)]


@router.get("/compare")
def compare_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    chosen: Chosen,
    base: Text = "",
    head: Heads = (),
    base_device: Word = "",
    head_device: Word = "",
    sort: Order = "verdict",
    number: Number = 1,
) -> Response:
    """`base` and each `head`: the beginning of a run's id or of a commit, or a branch."""
    heads = [one for one in head if one.strip()]

    def form() -> dict[str, Any]:
        given = {"base": base, "head": heads[0] if heads else ""}
        given |= {"base_device": base_device, "head_device": head_device}
        offered = reader.runs()[:OFFERED]
        found: dict[str, Any] = {
            "given": given,
            "given_heads": heads,
            "chosen": chosen,
            "offered": offered,
            "sort": sort,
        }
        return found | {"error": "", "result": None, "several": len(heads) > 1}

    def values() -> Mapping[str, Any]:
        found = form()
        if not base or not heads:
            pairs = ((before, run) for run in found["offered"] if (before := reader.before(run)))
            return {**found, "example": next(pairs, None)}
        if len(heads) > 1:
            return {**found, **_several(reader, base, heads, chosen, number)}
        return {**found, **_result(reader, found["given"], chosen, sort, number)}

    try:
        return page(request, cache, "compare.html", values)
    except NothingError as error:
        body = render("compare.html", request, **{**form(), "error": str(error)})
        return Response(body.encode("utf-8", "replace"), 404, media_type="text/html")


def _several(
    reader: Reader, base: str, heads: Sequence[str], chosen: Mapping[str, str], number: int
) -> Mapping[str, Any]:
    """Several runs beside the base."""
    first = resolve(reader, base)
    runs = [resolve(reader, one) for one in heads]
    rows = side_by_side(reader, first, runs)
    refuse_unknown_filters(rows, **chosen)
    counted = [Counter(one.words) for one in rows[0].judged] if rows else [Counter[str]() for _ in runs]
    listed = [
        row
        for row in rows
        if chosen["op"] in {"", row.case.op}
        and chosen["implementation"] in {"", row.implementation}
        and (chosen["verdict"] in row.words if chosen["verdict"] else row.largest or not row.words <= ONE_SIDED)
    ]
    paging = Paging(number, len(listed))
    return {
        "base": first,
        "heads": [
            (run, _ordered(counts), any(one.hard for one in differences(first.environment, run.environment)))
            for run, counts in zip(runs, counted, strict=True)
        ],
        "words": list(_ordered(sum(counted, Counter()))),
        "result": listed[paging.start : paging.stop],
        "paging": paging,
        "ops": sorted({row.case.op for row in rows}),
        "implementations": sorted({row.implementation for row in rows}),
        "devices": [],
        "counts": _ordered(sum(counted, Counter())),
    }


def _ordered(counts: Counter[str]) -> dict[str, int]:
    """Counts by word, those without a time on both sides last."""
    return dict(sorted(counts.items(), key=lambda item: item[0] in ONE_SIDED))


def _result(
    reader: Reader, given: Mapping[str, str], chosen: Mapping[str, str], order: str, number: int
) -> Mapping[str, Any]:
    base, head = resolve(reader, given["base"]), resolve(reader, given["head"])
    devices = {name: given[name] for name in ("base_device", "head_device")}
    everything = sort_compared(compare_runs(reader, base, head, **devices))
    refuse_unknown_filters(everything, **chosen)
    refuse_unknown_sides(everything, device_choices(base, head), *devices.values())
    by_verdict = [one for one in everything if _is_chosen(one, chosen)]
    found = sorted(by_verdict, key=ORDERS[order]) if order in ORDERS else by_verdict
    paging = Paging(number, len(found))
    drawn = sorted([one for one in by_verdict if one.ratio][:DRAWN], key=lambda one: -(one.ratio or 0.0))
    labels = [f"{one.case.op} · {one.case.name} · {one.case.dtype} · {one.implementation}" for one in drawn]
    spans = [(one.ratio or 1.0, *(one.interval or (None, None))) for one in drawn]
    return {
        "result": found[paging.start : paging.stop],
        "counts": _ordered(Counter(one.word for one in everything)),
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
