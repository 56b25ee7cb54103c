"""Trust: what the gate's self-tests found, and what stored runs of one commit say of its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from fastapi import APIRouter, Request, Response

from opgauge.harness.result.summary import PEERS
from opgauge.harness.result.time_text import time_text
from opgauge.harness.store import self_tests
from opgauge.harness.store.run_queries import RunInfo
from opgauge.harness.store.self_tests import SelfTest
from opgauge.web.comparison import compare_runs
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.pages.query import Number, Word
from opgauge.web.reader import Reader, Recent
from opgauge.web.regression import timed
from opgauge.web.unknown import ops_of, refuse_unknown
from opgauge.web.view import Paging, page

LEAST_RUNS = 4
PAIRED = 6
"""Fewest runs of a series with known noise; most pairs of runs of one commit."""
WITHIN = 1.4826
"""Standard deviations of a normal distribution in a median absolute deviation, inverted."""
ROWS = 200
HIDDEN = ("case_id",)
"""Most rows of a table, and columns that are left out."""
router = APIRouter()


@router.get("/trust")
def trust(request: Request, cache: CacheOf, reader: ReaderOf, op: Word = "", number: Number = 1) -> Response:
    """Rates of false alarms, what can be seen of each case, agreement with other tools."""

    def values() -> Mapping[str, Any]:
        recent = reader.recent()
        refuse_unknown("op", op, ops_of(recent))
        noise = known_noise(reader)
        chosen = [one for one in noise if op in {"", one["case"].op}]
        paging = Paging(number, len(chosen), 40)
        tests = {kind: self_tests.list_self_tests(reader.engine, kind) for kind in self_tests.KINDS}
        return {
            "tests": {kind: [(one, facts(one.data)) for one in found] for kind, found in tests.items()},
            "tables": {kind: table(found[0].data) if found else None for kind, found in tests.items()},
            "seen": _seen(tests["aa"]),
            "free": reader.cache.get("free A/A", lambda: _same_commit(reader, recent)),
            "noise": chosen[paging.start : paging.stop],
            "paging": paging,
            "ops": sorted({one["case"].op for one in noise}),
            "op": op,
        }

    return page(request, cache, "trust.html", values)


def facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Findings of a self-test by name: shares in percent with their bounds, the rest as it is; no tables."""
    found = []
    for key, value in data.items():
        name, _, kind = key.rpartition("_")
        if isinstance(value, list | Mapping) or (kind in {"low", "high"} and f"{name}_share" in data):
            continue
        if kind == "share":
            ends = [data.get(f"{name}_{end}") for end in ("low", "high")]
            bounds = f" ({cell('_share', ends[0])} – {cell('_share', ends[1])})" if None not in ends else ""
            found.append((_words(name), cell(key, value) + bounds))
        else:
            found.append((_words(key), cell(key, value)))
    return found


def _words(key: str) -> str:
    """The name of a finding as words, with microseconds as elsewhere."""
    return " ".join("µs" if part == "us" else part for part in key.split("_"))


def table(data: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """The cases of a self-test: names of the columns, and rows; None where there are none."""
    listed = data.get("cases")
    rows = [row for row in listed[:ROWS] if isinstance(row, Mapping)] if isinstance(listed, list) else []
    keys = [key for key in dict.fromkeys(str(key) for row in rows for key in row) if key not in HIDDEN]
    names = [_words(key.removesuffix("_ns")) for key in keys]
    return (names, [[cell(key, row.get(key)) for key in keys] for row in rows]) if rows else None


def cell(key: str, value: object) -> str:
    """A value by what the name says it is: nanoseconds, a share, or neither."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)[:200]
    if key.endswith("_ns"):
        return time_text(float(value)) if value >= 0 else f"−{time_text(-float(value))}"
    if key.endswith(("_share", "_change", "_floor")) or key == "slowdown":
        return f"{100 * value:.3g} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _seen(tests: Sequence[SelfTest]) -> dict[tuple[str, str], float]:
    """The change that the gate sees, by case and implementation, as the latest self-tests found it."""
    found: dict[tuple[str, str], float] = {}
    for one in reversed(tests):
        listed = one.data.get("cases")
        for row in listed if isinstance(listed, list) else []:
            value = row.get("detectable_change") if isinstance(row, Mapping) else None
            if isinstance(value, int | float):
                found[str(row.get("case_id")), str(row.get("implementation"))] = float(value)
    return found


def known_noise(reader: Reader) -> list[dict[str, Any]]:
    """Noise of every series, computed once for each state of the data."""
    return reader.cache.get("noise", lambda: _noise(reader.recent()))


def _noise(recent: Recent) -> list[dict[str, Any]]:
    """How far the time of each series moves from run to run, noisiest first.

    The spread is taken from neighbours, robustly, so that steps do not count. What is called
    detectable is three standard deviations of the difference of two runs.
    """
    found = []
    for (case_id, implementation, slug), levels in recent.series.items():
        times = [time for _, time in timed(levels)]
        if implementation in PEERS or len(times) < LEAST_RUNS:
            continue
        steps = [abs(after / before - 1) for before, after in pairwise(times)]
        spread = WITHIN * median(steps)
        found.append(
            {
                "case": recent.cases[case_id],
                "implementation": implementation,
                "device": recent.devices[slug],
                "runs": len(times),
                "median_ns": median(times),
                "spread": spread,
                "detectable": 3 * spread,
                "series": times,
            }
        )
    return sorted(found, key=lambda one: -one["spread"])


def _same_commit(reader: Reader, recent: Recent) -> Sequence[dict[str, Any]]:
    """Neighbouring runs of one clean commit in one place, compared: whatever is called slower or faster is false."""
    pairs: list[tuple[RunInfo, RunInfo]] = []
    before: dict[frozenset[tuple[str, str]], RunInfo] = {}  # by place, whatever was run elsewhere meanwhile
    for head in recent.runs:
        place = frozenset(head.environment.hard.items())
        base, before[place] = before.get(place), head
        if base is not None and head.commit and base.commit == head.commit and not head.commit.endswith("-dirty"):
            pairs.append((base, head))
    found: list[dict[str, Any]] = []
    for base, head in reversed(pairs):
        if len(found) == PAIRED:
            break
        words = [one.word for one in compare_runs(reader, base, head)]
        decided = [word for word in words if word in {"slower", "faster", "same", "undecided"}]
        if not decided:
            continue  # they have no case in common
        found.append(
            {
                "base": base,
                "head": head,
                "decisions": len(decided),
                "false": sum(word in {"slower", "faster"} for word in decided),
                "undecided": decided.count("undecided"),
            }
        )
    return found[::-1]
