"""Overview: where every op stands, what changed lately, when each device last ran."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.overview import Standing, standings
from opgauge.web.pages.query import Word
from opgauge.web.reader import Reader
from opgauge.web.regression import State, known_regressions
from opgauge.web.rows import geometric_mean
from opgauge.web.view import page

LATELY = 8
router = APIRouter()


@router.get("/")
def overview(request: Request, cache: CacheOf, reader: ReaderOf, device: Word = "") -> Response:
    """The overview, of one device or of all."""
    return page(request, cache, "overview.html", lambda: _values(reader, device))


def known_standings(reader: Reader) -> list[Standing]:
    """Of every op and device, made once for each state of the data."""
    return reader.cache.get("standings", lambda: standings(reader, reader.recent()))


def _values(reader: Reader, device: str) -> Mapping[str, Any]:
    recent = reader.recent()
    found = [one for one in known_standings(reader) if device in {"", one.device.slug}]
    regressions = [one for one in known_regressions(reader) if device in {"", one.device.slug}]
    still_open = [one for one in regressions if one.state is State.OPEN]
    return {
        "standings": found,
        "peers": list(dict.fromkeys(peer for one in found for peer in one.peers)),
        "devices": sorted(recent.devices.values(), key=lambda one: one.slug),
        "last_run": recent.last_run,
        "device": device,
        "lately": still_open[:LATELY],
        "open": len(still_open),
        "cases": sum(one.cases for one in found),
        "bad": sum(one.bad for one in found),
        "speedup": geometric_mean(one.speedup for one in found),
        "over_peers": geometric_mean(one.over_peers for one in found),
        "today": datetime.now(UTC).date(),
    }
