"""`/compare` and `/regressions`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from opgauge.web.api.answer import PLAIN, Limit, Name, Offset, json_answer, page, problems
from opgauge.web.api.models import ComparisonPage, RegressionPage
from opgauge.web.comparison import Compared, compare_runs, device_choices, differences, resolve, sort_compared
from opgauge.web.deps import ReaderOf
from opgauge.web.known_regressions import known_regressions
from opgauge.web.regression import Regression, RegressionState
from opgauge.web.scope import each_project
from opgauge.web.unknown import ops_of, refuse_unknown, refuse_unknown_filters, refuse_unknown_sides

router = APIRouter(tags=["comparisons"])
Side = Annotated[
    str, Query(min_length=1, max_length=200, pattern=PLAIN, description="A run's id, a commit, or a branch.")
]


@router.get("/compare", response_model=ComparisonPage, responses=problems(404, 422))
def compare(
    reader: ReaderOf,
    base: Side,
    head: Side,
    limit: Limit = 100,
    offset: Offset = 0,
    base_device: Name = "",
    head_device: Name = "",
    op: Name | None = None,
    implementation: Name | None = None,
    verdict: Annotated[Name | None, Query(description="faster, same, slower, undecided, broken, new, …")] = None,
) -> Response:
    """Two runs, commits, branches or devices side by side, each case with its verdict and the reason for it."""
    before, after = resolve(reader, base), resolve(reader, head)
    found = sort_compared(compare_runs(reader, before, after, base_device=base_device, head_device=head_device))
    refuse_unknown_filters(found, op or "", implementation or "", verdict or "")
    refuse_unknown_sides(found, device_choices(before, after), base_device, head_device)
    chosen = [
        one
        for one in found
        if op in {None, one.case.op} and implementation in {None, one.implementation} and verdict in {None, one.word}
    ]
    answer = page(chosen, limit, offset)
    answer["items"] = [_comparison_record(one) for one in answer["items"]]
    differing = differences(before.environment, after.environment)
    return json_answer(
        {
            "base": before.id,
            "head": after.id,
            "differences": [
                {"key": one.key, "base": one.base, "head": one.head, "hard": one.hard} for one in differing
            ],
            "counts": dict(Counter(one.word for one in chosen)),
            **answer,
        }
    )


@router.get("/regressions", response_model=RegressionPage, responses=problems(404, 422))
def list_regressions(
    reader: ReaderOf,
    limit: Limit = 100,
    offset: Offset = 0,
    state: RegressionState | None = None,
    op: Name | None = None,
    device: Annotated[Name | None, Query(description="A device's name or its fingerprint.")] = None,
) -> Response:
    """Series that got slower or broke, found in the latest runs of every device."""
    readers = each_project(reader)
    found = [one for own in readers for one in known_regressions(own)]
    recents = [own.recent() for own in readers]
    refuse_unknown("op", op or "", (name for recent in recents for name in ops_of(recent)))
    devices = (one for recent in recents for one in recent.devices.values())
    refuse_unknown("device", device or "", (name for one in devices for name in (one.name, one.slug)))
    states = list(RegressionState)
    chosen = [
        one
        for one in sorted(found, key=lambda one: states.index(one.state))
        if state in {None, one.state}
        and op in {None, one.case.op}
        and device in {None, one.device.slug, one.device.name}
    ]
    answer = page(chosen, limit, offset)
    answer["items"] = [_regression_record(one) for one in answer["items"]]
    return json_answer(answer)


def _comparison_record(one: Compared) -> dict[str, Any]:
    return {
        "op": one.case.op,
        "case": one.case.name,
        "case_id": one.case.case_id,
        "implementation": one.implementation,
        "device": one.device,
        "verdict": one.verdict,
        "kind": one.kind,
        "reason": one.reason,
        "detail": one.detail,
        "pairs": one.pairs,
        "ratio": one.ratio,
        "interval": None if one.interval is None else list(one.interval),
        "base_ns": one.base_ns,
        "head_ns": one.head_ns,
    }


def _regression_record(one: Regression) -> dict[str, Any]:
    return {
        "project": one.run.project,
        "op": one.case.op,
        "case": one.case.name,
        "case_id": one.case.case_id,
        "implementation": one.implementation,
        "device": one.device.name,
        "fingerprint": one.device.slug,
        "kind": one.kind,
        "state": one.state,
        "detail": one.detail,
        "ratio": one.ratio,
        "before_ns": one.before_ns,
        "after_ns": one.after_ns,
        "good_run": one.before.id,
        "good_commit": one.before.commit,
        "bad_run": one.run.id,
        "bad_commit": one.run.commit,
        "fixed_run": None if one.fixed_in is None else one.fixed_in.id,
    }
