"""Runs: the list, and one run with its environment, its results and its export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Request, Response

from opgauge.harness.json_text import write_compact
from opgauge.harness.report.export import whole_run
from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS
from opgauge.harness.store import queries, run_queries
from opgauge.harness.store.dumping import dump_run
from opgauge.harness.store.history import gives_wrong_time
from opgauge.harness.store.queries import Detail
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.devices import device_names
from opgauge.web.known_runs import find_runs
from opgauge.web.level import GRAVE
from opgauge.web.pages.query import Number, Text, Word
from opgauge.web.reader import Reader
from opgauge.web.rows import implementations, rows_of
from opgauge.web.scope import reader_of_run
from opgauge.web.table import table_of
from opgauge.web.unknown import refuse_unknown
from opgauge.web.view import Paging, page, sent

FAILURES = 100
"""Most failures that are listed."""
RunId = Annotated[str, Path(max_length=36, pattern=r"^[A-Za-z0-9_.\-]+$")]
router = APIRouter()


@router.get("/runs")
def runs_page(
    request: Request, cache: CacheOf, reader: ReaderOf, status: Word = "", commit: Word = "", number: Number = 1
) -> Response:
    """Runs, newest first."""

    def values() -> Mapping[str, Any]:
        paging = Paging(
            number, run_queries.count_runs(reader.engine, status=status, commit=commit, project=reader.project)
        )
        place = (paging.size, paging.start)
        found = run_queries.list_runs(
            reader.engine, limit=place[0], offset=place[1], status=status, commit=commit, project=reader.project
        )
        return {
            "runs": found,
            "counts": queries.count_statuses(reader.engine, [run.key for run in found]),
            "devices": {run.key: [reader.device(run, name) for name in device_names(run)] for run in found},
            "paging": paging,
            "status": status,
            "commit": commit,
            "grave": [str(one) for one in GRAVE],
        }

    return page(request, cache, "runs.html", values)


@router.get("/runs/{run_id}")
def run_page(
    request: Request, cache: CacheOf, reader: ReaderOf, run_id: RunId, q: Text = "", op: Word = "", number: Number = 1
) -> Response:
    """One run."""
    return page(request, cache, "run.html", lambda: _values(reader, find(reader, run_id), q, op, number))


@router.get("/runs/{run_id}/export.{kind}")
def export(request: Request, reader: ReaderOf, run_id: RunId, kind: Literal["json", "csv"]) -> Response:
    """The run as JSON with its samples, which `opgauge import` reads, or as a CSV table."""
    info = find(reader, run_id)
    ceilings = reader.ceilings(info)
    if kind == "json":
        text = dump_run(reader.engine, info.key, write_compact(whole_run(info, [], ceilings)).decode())
        media_type = "application/json"
    else:
        text = table_of(reader, info, ceilings)
        media_type = "text/csv; charset=utf-8"
    headers = {"Content-Disposition": f'attachment; filename="opgauge-{info.id[:8]}.{kind}"'}
    return sent(request, media_type, text.encode("utf-8", "replace"), headers)


def find(reader: Reader, run_id: str) -> RunInfo:
    """The run whose id begins with `run_id`; raises HTTPException if there is none, or several."""
    found = find_runs(reader, run_id)
    exact = [run for run in found if run.id == run_id]
    if len(exact or found) == 1:
        return (exact or found)[0]
    raise HTTPException(404, f"no run {run_id}" if not found else f"several runs begin with {run_id}")


def _place(name: str) -> tuple[bool, bool]:
    """Optimized kernel first, peers before variants, of which a run of many ops has many."""
    return (name != OPTIMIZED, name not in {BASELINE, *PEERS})


def _grouped(bad: list[Detail]) -> list[tuple[Detail, int]]:
    """One result of each failed trial, and how many of its processes failed so."""
    found: dict[tuple[int, str, str, str], list[Detail]] = {}
    for one in bad:
        point = one.point
        found.setdefault((point.case_key, point.implementation, point.device, point.status), []).append(one)
    return [(blocks[0], len(blocks)) for blocks in found.values()]


def _values(reader: Reader, run: RunInfo, text: str, op: str, number: int) -> Mapping[str, Any]:
    rows = rows_of(reader, run)
    refuse_unknown("op", op, (row.case.op for row in rows), f"in run {run.id[:8]}")
    chosen = [row for row in rows if op in {"", row.case.op} and text.lower() in row.case.name.lower()]
    paging = Paging(number, len(chosen))
    bad = queries.list_details(reader.engine, run.key, statuses=[str(one) for one in GRAVE], limit=FAILURES)
    return {
        "run": run,
        "rows": chosen[paging.start : paging.stop],
        "names": sorted(implementations(rows), key=_place),
        "paging": paging,
        "ops": sorted({row.case.op for row in rows}),
        "op": op,
        "q": text,
        "failures": _grouped(bad),
        "cases": reader.cases({one.point.case_key for one in bad}),
        "counts": queries.count_statuses(reader.engine, [run.key])[run.key],
        "statuses": [str(status) for status in Status],
        "ceilings": reader.ceilings(run),
        "devices": [reader.device(run, name) for name in device_names(run)],
        "previous": reader_of_run(reader, run).before(run),
        "wrong_time": run.committed if gives_wrong_time(run) else None,
    }
