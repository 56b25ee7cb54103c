"""`/healthz` and `/metrics`, for machines that watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from anyio import CapacityLimiter, move_on_after, to_thread
from anyio.lowlevel import RunVar
from fastapi import APIRouter, Request, Response
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from opgauge.harness.result.result import Status
from opgauge.harness.store import run_queries
from opgauge.harness.store.schema import HEAD
from opgauge.harness.store.tables import RunRow
from opgauge.web.api.answer import json_answer, problems
from opgauge.web.api.models import HealthModel
from opgauge.web.deps import CacheOf, ReaderOf, StoreOf
from opgauge.web.known_regressions import known_regressions
from opgauge.web.observe import POOL, service_metrics
from opgauge.web.reader import Reader
from opgauge.web.regression import RegressionState

router = APIRouter(tags=["health"])
DATABASE_S = 2.0
"""Seconds that the database may take to answer a health check."""
_limiters: RunVar[CapacityLimiter] = RunVar("health")
SERIES = 5_000
"""Limit of series of times: Prometheus stores each for ever."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of metrics."""
_PLAIN: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}
}
_Sample = tuple[dict[str, str], float]


@router.get("/healthz", response_model=HealthModel, responses=problems(503))
async def health(store: StoreOf) -> Response:
    """Whether the service and its database answer."""
    # a thread of its own: the pages may have taken all the others
    answered = False
    with move_on_after(DATABASE_S):
        answered = await to_thread.run_sync(_answers, store.engine, limiter=_limiter(), abandon_on_cancel=True)
    if not answered:
        return json_answer({"detail": "the database does not answer"}, 503)
    return json_answer({"status": "ok", "schema_version": HEAD})


def _answers(engine: Engine) -> bool:
    try:
        with engine.connect() as connection:
            connection.execute(select(RunRow.id).limit(1)).first()
    except SQLAlchemyError:
        return False
    return True


def _limiter() -> CapacityLimiter:
    """The limiter of this event loop for health checks."""
    try:
        return _limiters.get()
    except LookupError:
        made = CapacityLimiter(2)
        _limiters.set(made)
        return made


@router.get("/metrics", responses=_PLAIN, response_class=Response)
def metrics(request: Request, cache: CacheOf, reader: ReaderOf) -> Response:
    """Latest times and statuses of every series, age of every device's data, regressions, and the service itself."""
    del request
    POOL.set(checked_out(reader.engine))
    return Response(cache.get("metrics", lambda: _metrics(reader)) + service_metrics(), media_type=TEXT)


def checked_out(engine: Engine) -> int:
    """Connections to the database that are in use; 0 for a pool that does not count."""
    count: Callable[[], int] | None = getattr(engine.pool, "checkedout", None)
    return 0 if count is None else count()


def _metrics(reader: Reader) -> bytes:
    return "".join(_lines(reader)).encode("utf-8", "replace")


def _lines(reader: Reader) -> Iterator[str]:
    recent = reader.recent()
    yield from _family("opgauge_runs", "Runs that are stored.", [({}, run_queries.count_runs(reader.engine))])
    yield from _family(
        "opgauge_last_run_timestamp_seconds",
        "When the latest run of a device started.",
        [
            ({"device": device.name, "model": device.model, "fingerprint": slug}, run.started.timestamp())
            for slug, run in recent.last_run.items()
            for device in [recent.devices[slug]]
        ],
    )
    states = Counter(one.state for one in known_regressions(reader))
    yield from _family(
        "opgauge_regressions",
        "Regressions by how they stand.",
        [({"state": state}, float(states[state])) for state in RegressionState],
    )
    times: list[_Sample] = []
    fine: list[_Sample] = []
    for (case_id, implementation, slug), levels in list(recent.series.items())[:SERIES]:
        case, level = recent.cases[case_id], levels[-1]
        device = recent.devices[slug].name
        labels = {"op": case.op, "case": case.name, "case_id": case_id, "implementation": implementation}
        labels |= {"device": device, "fingerprint": slug}
        fine.append((labels, float(level.status == Status.OK)))
        if level.median_ns is not None:
            times.append((labels, level.median_ns / 1e9))
    yield from _family("opgauge_ok", "Whether a case is right in its latest run.", fine)
    yield from _family("opgauge_median_seconds", "Median time of one call in the latest run.", times)


def _family(name: str, text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(label: str) -> str:
    """A label value as Prometheus reads it; a carriage return is not in its grammar, but ends lines elsewhere."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").replace("\r", " ")
