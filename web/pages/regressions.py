"""Regressions: open, acknowledged, fixed; acknowledging them; and a feed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import yaml
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from opgauge.harness.scope import Scope
from opgauge.harness.store import acknowledgements
from opgauge.harness.store.acknowledgements import Acknowledgement
from opgauge.web.auth import address_of, audit, check_token, limits_of
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.form import Form
from opgauge.web.known_regressions import known_regressions
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.reader import RECENT, Reader
from opgauge.web.regression import Regression, RegressionState
from opgauge.web.scope import each_project, prefix
from opgauge.web.unknown import ops_of, refuse_unknown, refuse_unknown_device
from opgauge.web.view import Paging, page, render

DAYS = 30
FEED = 50
LONGEST = 500
"""Days of an acknowledgement by default, entries of the feed, characters of a text."""
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot have."""
router = APIRouter()


@router.get("/regressions")
def regressions_page(
    request: Request,
    cache: CacheOf,
    reader: ReaderOf,
    state: Word = "",
    op: Word = "",
    device: Word = "",
    number: Number = 1,
) -> Response:
    """Regressions of a state, an op or a device, open ones first."""

    def values() -> Mapping[str, Any]:
        everything, recent = known_regressions(reader), reader.recent()
        refuse_unknown("state", state, RegressionState, "of a regression")
        refuse_unknown("op", op, ops_of(recent))
        refuse_unknown_device(device, recent.devices.values())
        there = [one for one in everything if op in {"", one.case.op} and device in {"", one.device.slug}]
        found = [one for one in there if state in {"", one.state}]
        paging = Paging(number, len(found), 25)
        return {
            "found": found[paging.start : paging.stop],
            "counts": Counter(str(one.state) for one in there),
            "states": [str(one) for one in RegressionState],
            "ops": sorted({one.case.op for one in everything}),
            "devices": sorted({one.device.slug: one.device for one in everything}.values(), key=lambda one: one.slug),
            "chosen": {"state": state, "op": op, "device": device},
            "paging": paging,
            "has_runs": bool(recent.runs),
            "window": RECENT,
            "waiver_file": reader.waiver_file(),
            "today": datetime.now(UTC).date(),
        }

    return page(request, cache, "regressions.html", values)


@router.get("/regressions.atom")
def feed(request: Request, reader: ReaderOf) -> Response:
    """The latest regressions of any state as an Atom feed, of all projects where none is chosen."""
    root, readers = str(request.base_url).rstrip("/"), each_project(reader)
    roots = {one.project: root + (prefix(str(one.project)) if len(readers) > 1 else "") for one in readers}
    pairs = [(one, roots[own.project]) for own in readers for one in known_regressions(own)]
    found = sorted(pairs, key=lambda pair: pair[0].run.started, reverse=True)[:FEED]
    updated = max(((one.fixed_in or one.run).started for one, _ in found), default=datetime(2026, 1, 1, tzinfo=UTC))
    body = render("feed.xml", request, found=found, updated=updated, root=root)
    return Response(_FORBIDDEN.sub("\ufffd", body).encode(), media_type="application/atom+xml")


@router.get("/regressions/{key}")
def regression_page(request: Request, cache: CacheOf, reader: ReaderOf, key: str, owner: Text = "") -> Response:
    """One regression, with the form that acknowledges it."""

    def values() -> Mapping[str, Any]:
        found = _find(reader, key)
        until = datetime.now(UTC).date() + timedelta(days=DAYS)
        form = {"owner": owner, "reason": "", "until": until.isoformat(), "expected": _expected(found)}
        return {"one": found, "form": form, "error": "", "waiver": _known_waiver(found)}

    return page(request, cache, "regression.html", values)


@router.post("/regressions/{key}")
def acknowledge(request: Request, cache: CacheOf, reader: ReaderOf, key: str, sent: Form) -> Response:
    """Write the text of the waiver; with a token of scope `ack` store the acknowledgement too."""
    found = _find(reader, key)
    form = {name: sent.get(name, "").strip()[:LONGEST] for name in ("owner", "reason", "until", "expected")}
    try:
        given = _read(found, form)
    except ValueError as error:
        return _form(request, found, form, str(error), 422)
    waiver, secret = waiver_yaml(found, given), sent.get("token", "").strip()
    if not secret:
        return _form(request, found, form, "", 200, waiver)
    try:
        token = check_token(reader.writing, limits_of(request), address_of(request), secret)
    except HTTPException as error:
        return _form(request, found, form, str(error.detail), error.status_code, waiver)
    if not token.allows(Scope.ACK):
        return _form(request, found, form, f"the token {token.name} is not for acknowledging", 403, waiver)
    if not token.covers(found.run.project):
        return _form(request, found, form, f"the token {token.name} is for another project", 403, waiver)
    acknowledgements.add_acknowledgement(
        reader.writing, replace(given, project=found.run.project, recorded_by=token.name)
    )
    audit(request, token.name, "acknowledge", _subject(found), given.reason)
    cache.forget()
    return RedirectResponse(_own(request, found), 303)


@router.post("/regressions/{key}/withdraw")
def withdraw(request: Request, cache: CacheOf, reader: ReaderOf, key: str, sent: Form) -> Response:
    """Undo an acknowledgement with a token of scope `ack`: the regression is open again."""
    found = _find(reader, key)
    given = found.acknowledgement
    form = {"owner": "", "reason": "", "until": "", "expected": ""}
    if not isinstance(given, Acknowledgement):
        return _form(request, found, form, "only acknowledgements that are stored here can be withdrawn", 409)
    try:
        token = check_token(reader.writing, limits_of(request), address_of(request), sent.get("token", "").strip())
    except HTTPException as error:
        return _form(request, found, form, str(error.detail), error.status_code)
    if not token.allows(Scope.ACK) or not token.covers(found.run.project):
        return _form(request, found, form, f"the token {token.name} is not for acknowledging here", 403)
    acknowledgements.withdraw_acknowledgement(reader.writing, given.key, token.name)
    audit(request, token.name, "withdraw", _subject(found), given.reason)
    cache.forget()
    return RedirectResponse(_own(request, found), 303)


def _subject(found: Regression) -> str:
    return f"{found.case.op}/{found.case.name} {found.implementation} on {found.device.name}: {found.kind}"


def _own(request: Request, found: Regression) -> str:
    return f"{request.scope.get('root_path', '')}/regressions/{found.key}"


def _find(reader: Reader, key: str) -> Regression:
    """The regression with a key; 404 without one."""
    found = next((one for one in known_regressions(reader) if one.key == key), None)
    if found is None:
        raise HTTPException(404, "no such regression in the recent runs")
    return found


def _form(
    request: Request, found: Regression, form: Mapping[str, str], error: str, status: int, waiver: str = ""
) -> Response:
    body = render("regression.html", request, one=found, form=form, error=error, waiver=waiver)
    return Response(body.encode("utf-8", "replace"), status, media_type="text/html")


def _expected(found: Regression) -> str:
    return f"{found.ratio * 1.02:.3f}" if found.ratio else ""


def _read(found: Regression, form: Mapping[str, str]) -> Acknowledgement:
    """The acknowledgement of the form; raises ValueError, which names the fault."""
    try:
        until = date.fromisoformat(form["until"])
    except ValueError:
        msg = "the last day should be written as YYYY-MM-DD"
        raise ValueError(msg) from None
    if until < datetime.now(UTC).date():
        msg = "the last day has passed"
        raise ValueError(msg)
    if not form["owner"] or not form["reason"]:
        msg = "name and reason should not be empty"
        raise ValueError(msg)
    return Acknowledgement(
        found.case.case_id,
        found.implementation,
        found.device.name,
        found.kind,
        form["owner"],
        form["reason"],
        until,
        _ratio(form["expected"]),
        datetime.now(UTC),
        regression=found.key,
    )


def _ratio(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        msg = "the expected ratio should be a positive number, such as 1.15"
        raise ValueError(msg)
    return value


def _known_waiver(found: Regression) -> str:
    given = found.acknowledgement
    return waiver_yaml(found, given) if isinstance(given, Acknowledgement) else ""


def waiver_yaml(found: Regression, given: Acknowledgement) -> str:
    """Entry for waivers.yaml."""
    entry: dict[str, Any] = {
        "cases": found.case.case_id,
        "device": given.device,
        "implementation": given.implementation,
        "owner": given.owner,
        "reason": given.reason,
        "until": given.until,
        "verdicts": [found.kind],
    }
    if given.expected_ratio is not None and found.kind == "slower":
        entry["expected_ratio"] = given.expected_ratio
    shown = " ".join(f"{found.case.op}/{found.case.name}".split())
    return f"# {shown}\n" + yaml.safe_dump([entry], sort_keys=False, allow_unicode=True, width=100)
