"""Trust: what the gate's self-tests found, and what stored runs of one commit say of its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from fastapi import APIRouter, Request, Response

from harness.store import queries
from harness.summary import PEERS
from web.comparison import compare_runs
from web.deps import CacheOf, ReaderOf
from web.pages.query import Number, Word
from web.reader import Reader, Recent
from web.regression import timed
from web.view import Paging, page

LEAST_RUNS = 4
PAIRED = 6
WITHIN = 1.4826
router = APIRouter()


@router.get("/trust")
def trust(request: Request, cache: CacheOf, reader: ReaderOf, op: Word = "", number: Number = 1) -> Response:
    """Rates of false alarms, what can be seen of each case, agreement with other tools."""

    def values() -> Mapping[str, Any]:
        recent = reader.recent()
        noise = known_noise(reader)
        chosen = [one for one in noise if op in {"", one["case"].op}]
        paging = Paging(number, len(chosen), 40)
        return {
            "tests": {kind: queries.list_self_tests(reader.engine, kind) for kind in ("aa", "inject", "agree")},
            "free": reader.cache.get("free A/A", lambda: _same_commit(reader, recent)),
            "noise": chosen[paging.start : paging.stop],
            "paging": paging,
            "ops": sorted({one["case"].op for one in noise}),
            "op": op,
        }

    return page(request, cache, "trust.html", values)


def known_noise(reader: Reader) -> list[dict[str, Any]]:
    """Of every series, made once for each state of the data."""
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
    found = []
    for base, head in pairwise(recent.runs):
        same = base.commit and base.commit == head.commit and not base.commit.endswith("-dirty")
        if not same or base.environment.hard != head.environment.hard:
            continue
        words = [one.word for one in compare_runs(reader, base, head)]
        decided = [word for word in words if word in {"slower", "faster", "same", "undecided"}]
        found.append(
            {
                "base": base,
                "head": head,
                "decisions": len(decided),
                "false": sum(word in {"slower", "faster"} for word in decided),
                "undecided": decided.count("undecided"),
            }
        )
    return found[-PAIRED:]
