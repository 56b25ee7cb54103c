"""Results of a case over many runs, as series and figures need them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Engine, bindparam

from opgauge.harness.store.columns import CHUNK, RESULT, is_among, json_texts, select

MOST = 20_000
"""Most results of a history that are read."""


class PastTime(NamedTuple):
    """One result in the history of a case, as a series needs it."""

    run_key: int
    implementation: str
    block: int
    status: str
    median_ns: float | None


class Past(NamedTuple):
    """One result in the history of a case, as a figure draws it.

    low_ns, high_ns: quartiles of its samples. peak_bytes, launches: JSON as stored; None if absent.
    """

    run_key: int
    implementation: str
    block: int
    status: str
    median_ns: float | None
    low_ns: float | None
    high_ns: float | None
    peak_bytes: str | int | None
    launches: str | int | None


_TIMES = (
    select(RESULT.run_id, *(RESULT[name] for name in PastTime._fields[1:]))
    .where(is_among(RESULT.case_key, "cases"))
    .where(is_among(RESULT.run_id, "runs"), RESULT.device == bindparam("device"))
    # the order of the index that covers the query
    .order_by(RESULT.run_id.desc(), RESULT.implementation.desc(), RESULT.block.desc())
    .limit(bindparam("most"))
)
_TIMES_WITHOUT = _TIMES.where(RESULT.implementation.not_in(bindparam("without", expanding=True)))
_PARTS = (("measurement", "peak_bytes"), ("measurement", "footprint", "launches"))


def list_times(
    engine: Engine, case_keys: Sequence[int], run_keys: Sequence[int], device: str, without: Collection[str]
) -> list[PastTime]:
    """Results of a case in some runs on one device, but not of the implementations `without`; see `list_history`."""
    given = {"cases": case_keys[:CHUNK], "device": device, "without": list(without)}
    return list(map(PastTime._make, _latest(engine, _TIMES_WITHOUT, given, run_keys)))


def list_history(engine: Engine, case_keys: Sequence[int], run_keys: Sequence[int], device: str) -> list[Past]:
    """Results of a case in some runs on one device, by run, implementation and process.

    Of too many those of the last runs, whole.
    """
    given = {"cases": case_keys[:CHUNK], "device": device}
    return list(map(Past._make, _latest(engine, _history(engine.dialect.name), given, run_keys)))


@cache
def _history(dialect: str) -> Any:
    return _TIMES.add_columns(RESULT.low_ns, RESULT.high_ns, *json_texts(dialect, *_PARTS))


def _latest(engine: Engine, query: Any, given: dict[str, Any], run_keys: Sequence[int]) -> list[Any]:
    """At most `MOST` rows, in order; the last runs are read first."""
    found: list[Any] = []
    with engine.connect() as connection:
        for end in range(len(run_keys), 0, -CHUNK):
            most = MOST - len(found)
            keys = run_keys[max(end - CHUNK, 0) : end]
            rows = connection.execute(query, {**given, "runs": keys, "most": most + 1}).all()
            found += rows
            if len(rows) > most:
                # the run that was reached may lack results
                found = [row for row in found if row[0] != rows[-1][0]]
                break
    return found[::-1]
