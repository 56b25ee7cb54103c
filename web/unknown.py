"""Refusal of unknown names in addresses: nothing found for a misspelt one would read as nothing wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastapi import HTTPException

from opgauge.harness.judge.verdict import Kind, Verdict
from opgauge.harness.store import listing
from opgauge.harness.store.listing import Filters
from opgauge.web.comparison import Compared
from opgauge.web.devices import DeviceInfo
from opgauge.web.reader import Reader, Recent
from opgauge.web.side_by_side import SideBySide

LISTED = 40
"""Most names that a refusal lists."""
LATEST = "in the latest runs"
COMPARED = "in these runs"
STORED = "in any run"
"""Places of names: without a run, of compared runs, and of all that is stored."""


def refuse_unknown(kind: str, given: str, known: Iterable[str], where: str = LATEST) -> None:
    """404 for a name that is not among the `known` ones, which the error lists; an empty one chooses all."""
    names = sorted(set(known))
    if given and given not in names:
        raise _unknown(kind, given, names, where)


def refuse_unknown_device(slug: str, devices: Iterable[DeviceInfo], where: str = LATEST) -> None:
    """404 for a device that is not among these; an empty one chooses all, or the first."""
    known = {one.slug: one for one in devices}
    if slug and slug not in known:
        raise _unknown("device", slug, [f"{key} ({one.model})" for key, one in sorted(known.items())], where)


def refuse_unknown_filters(
    compared: Sequence[Compared | SideBySide], op: str = "", implementation: str = "", verdict: str = ""
) -> None:
    """404 for an op or an implementation that none of these comparisons is of, and for a word that is no verdict."""
    refuse_unknown("op", op, (one.case.op for one in compared), COMPARED)
    refuse_unknown("implementation", implementation, (one.implementation for one in compared), COMPARED)
    refuse_unknown("verdict", verdict, (*Verdict, *Kind), "of a comparison")


def refuse_unknown_values(reader: Reader, filters: Filters) -> None:
    """404 for filters of a list by a case, an op, a dtype, an implementation or a device that nothing stored has."""
    if filters.case_id is not None and not reader.forms_of(filters.case_id):
        raise HTTPException(404, f"no case {filters.case_id}")
    if filters.op or filters.dtype:
        cases = reader.cache.get("case names", lambda: listing.list_case_names(reader.engine, reader.project))
        refuse_unknown("op", filters.op or "", (op for op, _ in cases), STORED)
        refuse_unknown("dtype", filters.dtype or "", (dtype for _, dtype in cases), STORED)
    if filters.implementation or filters.device:
        names = reader.result_names()
        refuse_unknown("implementation", filters.implementation or "", (made for made, _ in names), STORED)
        refuse_unknown("device", filters.device or "", (device for _, device in names), STORED)


def refuse_unknown_sides(compared: Sequence[Compared], devices: Iterable[str], *given: str) -> None:
    """404 for a device of a side that neither run has."""
    known = {*devices, *(one.device for one in compared if one.device)}
    for device in given:
        refuse_unknown("device", device, known, COMPARED)


def ops_of(recent: Recent) -> set[str]:
    """Ops of the latest runs."""
    return {case.op for case in recent.cases.values()}


def _unknown(kind: str, given: str, names: list[str], where: str) -> HTTPException:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return HTTPException(404, f"no {kind} {given} {where}; there are: {', '.join(names[:LISTED]) or 'none'}{more}")
