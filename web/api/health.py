"""`/healthz` and `/metrics`, for machines that watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
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
from opgauge.web.deps import ReaderOf, StoreOf
from opgauge.web.known_regressions import known_regressions
from opgauge.web.last_runs import last_runs
from opgauge.web.level import Level
from opgauge.web.observe import POOL, service_metrics
from opgauge.web.reader import Reader
from opgauge.web.regression import RegressionState
from opgauge.web.scope import each_project

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
def metrics(request: Request, reader: ReaderOf) -> Response:
    """Latest times and statuses of every series, age of every device's data, regressions, and the service itself."""
    del request
    POOL.set(checked_out(reader.engine))
    return Response(reader.cache.get("metrics", lambda: _metrics(reader)) + service_metrics(), media_type=TEXT)


def checked_out(engine: Engine) -> int:
    """Connections to the database that are in use; 0 for a pool that does not count."""
    count: Callable[[], int] | None = getattr(engine.pool, "checkedout", None)
    return 0 if count is None else count()


def _metrics(reader: Reader) -> bytes:
    return "".join(_lines(reader)).encode("utf-8", "replace")


def _lines(reader: Reader) -> Iterator[str]:
    readers = {_name(one): one for one in each_project(reader)}
    counted = [
        ({"project": name}, float(run_queries.count_runs(one.engine, project=one.project)))
        for name, one in readers.items()
    ]
    yield from _family("opgauge_runs", "Runs that are stored.", counted)
    last = [
        ({"project": name, "device": device.name, "model": device.model, "fingerprint": slug}, run.started.timestamp())
        for name, one in readers.items()
        for slug, (device, run) in last_runs(one).items()
    ]
    yield from _family("opgauge_last_run_timestamp_seconds", "When the latest run of a device started.", last)
    states = {name: Counter(found.state for found in known_regressions(one)) for name, one in readers.items()}
    regressions = [
        ({"project": name, "state": state}, float(counts[state]))
        for name, counts in states.items()
        for state in RegressionState
    ]
    yield from _family("opgauge_regressions", "Regressions by how they stand.", regressions)
    times: list[_Sample] = []
    fine: list[_Sample] = []
    for labels, level in islice(_latest(readers), SERIES):
        if level.status != Status.UNSUPPORTED:
            fine.append((labels, float(level.status == Status.OK)))
        if level.median_ns is not None:
            times.append((labels, level.median_ns / 1e9))
    yield from _family("opgauge_ok", "Whether a case is right in its latest run.", fine)
    yield from _family("opgauge_median_seconds", "Median time of one call in the latest run.", times)


def _name(reader: Reader) -> str:
    """Name of the reader's project; of the only one if it reads all."""
    return reader.project if reader.project is not None else next((name for name, _, _ in reader.projects()), "")


def _latest(readers: Mapping[str, Reader]) -> Iterator[tuple[dict[str, str], Level]]:
    """The latest level of each series of each project, with its labels."""
    for name, reader in readers.items():
        recent = reader.recent()
        for (case_id, implementation, slug), levels in recent.series.items():
            case = recent.cases[case_id]
            labels = {"project": name, "op": case.op, "case": case.name, "case_id": case_id}
            labels |= {"implementation": implementation, "device": recent.devices[slug].name, "fingerprint": slug}
            yield labels, levels[-1]


def _family(name: str, text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(label: str) -> str:
    """A label value as Prometheus reads it; a carriage return is not in its grammar, but ends lines elsewhere."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").replace("\r", " ")
