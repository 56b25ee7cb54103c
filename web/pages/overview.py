"""Overview: changes of the latest commits, the standing of every op, the last run of each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import PEERS
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.devices import DeviceInfo
from opgauge.web.drift import known_drifts
from opgauge.web.known_regressions import known_regressions
from opgauge.web.last_runs import last_runs, replaced_devices
from opgauge.web.overview import OpStanding, standings
from opgauge.web.pages.query import Word
from opgauge.web.reader import RECENT, Reader, Recent
from opgauge.web.regression import RegressionState, known_improvements
from opgauge.web.rows import geometric_mean
from opgauge.web.unknown import refuse_unknown_device
from opgauge.web.view import page, project_of

LATELY = 8
WEEK = timedelta(days=7)
"""Changes that are listed, and the period of the summary."""
router = APIRouter()


@router.get("/")
def overview(request: Request, cache: CacheOf, reader: ReaderOf, device: Word = "") -> Response:
    """The overview of one device or of all; the list of projects if there are several and none is chosen."""
    if project_of(request) is None and len(reader.projects()) > 1:
        return page(request, cache, "projects.html", lambda: {"listed": reader.projects()})
    return page(request, cache, "overview.html", lambda: _values(reader, device))


def known_standings(reader: Reader) -> list[OpStanding]:
    """Standings of every op and device, computed once for each state of the data."""
    return reader.cache.get("standings", lambda: standings(reader, reader.recent()))


def _first_device(found: list[OpStanding], replaced: Collection[str]) -> str:
    """Slug of the GPU with the most ops, or of the CPU if there is no GPU; of several the one with the newest run.

    Devices that were replaced come after the others.
    """
    counted = Counter(one.device for one in found)
    newest = {one.device: one.run.started for one in sorted(found, key=lambda one: one.run.started)}

    def rank(one: DeviceInfo) -> tuple[bool, bool, int, datetime, str]:
        return one.name != "cpu", one.slug not in replaced, counted[one], newest[one], one.slug

    return max(counted, key=rank).slug if counted else ""


def _judged(recent: Recent, device: str) -> int:
    """Number of series in which a regression would be found: of our implementations, right in an earlier run."""
    return sum(
        implementation not in PEERS and device in {"", slug} and any(one.status == Status.OK for one in levels[:-1])
        for (_, implementation, slug), levels in recent.series.items()
    )


def _values(reader: Reader, device: str) -> Mapping[str, Any]:
    recent = reader.recent()
    refuse_unknown_device(device, recent.devices.values())
    found = [one for one in known_standings(reader) if device in {"", one.device.slug}]
    regressions = [one for one in known_regressions(reader) if device in {"", one.device.slug}]
    improvements = [one for one in known_improvements(reader, recent) if device in {"", one.device.slug}]
    still_open = [one for one in regressions if one.state is RegressionState.OPEN]
    suspected = [one for one in regressions if one.state is RegressionState.SUSPECTED]
    acknowledged = [one for one in regressions if one.state is RegressionState.ACKNOWLEDGED]
    drifts = [one for one in known_drifts(reader, recent) if device in {"", one.device.slug}]
    history, judged = reader.history(), _judged(recent, device)
    since = max((history.order(run)[0] for run in recent.runs), default=datetime.now(UTC)) - WEEK
    # times of a GPU and of a CPU have no common mean
    first = device or _first_device(found, replaced_devices(reader))
    headline = [one for one in found if one.device.slug == first]
    return {
        "headline": headline[0].device if headline else None,
        "suspected": suspected[:LATELY],
        "suspicions": len(suspected),
        "improvements": improvements[:LATELY],
        "improved": len(improvements),
        "week": {
            "slower": sum(history.order(one.run)[0] >= since for one in (*still_open, *suspected)),
            "faster": sum(history.order(one.run)[0] >= since for one in improvements),
        },
        "branch": history.branch,
        "beside": len(history.beside),
        "judged": judged,
        "window": RECENT,
        "acknowledged": len(acknowledged),
        "drifts": drifts[:LATELY],
        "drifting": len(drifts),
        "standings": found,
        "peers": list(dict.fromkeys(peer for one in found for peer in one.peers)),
        "devices": sorted(recent.devices.values(), key=lambda one: one.slug),
        "last_run": {slug: run for slug, (_, run) in last_runs(reader).items()},
        "device": device,
        "lately": still_open[:LATELY],
        "open": len(still_open),
        "cases": sum(one.cases for one in found),
        "bad": sum(one.bad for one in found),
        "speedup": geometric_mean(one.speedup for one in headline),
        "over_peers": geometric_mean(one.over_peers for one in headline),
        "today": datetime.now(UTC).date(),
    }
