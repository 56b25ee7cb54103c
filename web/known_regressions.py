"""Known regressions: those of the recent runs, each under a key that stays.

A run of a commit in between, or a few more runs, can move the beginning of a regression. Its key is that of the
beginning at which it was first seen: a regression takes over the key of one that began within its extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from opgauge.harness.judge.changepoint import EDGE
from opgauge.harness.store import acknowledgements
from opgauge.harness.store.regression_keys import add_keys, find_keys
from opgauge.web.acknowledged import acknowledge
from opgauge.web.observe import log
from opgauge.web.reader import Reader, Recent
from opgauge.web.regression import Regression, by_state, find_regressions, timed
from opgauge.web.remembered import remembered


def known_regressions(reader: Reader) -> list[Regression]:
    """Regressions of the recent runs, computed once a day and state of the data."""
    today = datetime.now(UTC).date()

    def make() -> list[Regression]:
        given = acknowledgements.list_acknowledgements(reader.engine, project=reader.project)
        recent = reader.recent()
        found = keyed(reader.writing, recent, find_regressions(recent))
        found += remembered(reader, recent, found)
        return by_state(recent, acknowledge(found, given, today, reader.waiver_file()))

    return reader.cache.get(("regressions", today), make)


def keyed(engine: Engine, recent: Recent, found: Sequence[Regression]) -> list[Regression]:
    """Regressions with the keys that stay; new ones are stored."""
    own = [one.key_at(one.run) for one in found]
    keys = find_keys(engine, own)
    new = {key: one for key, one in zip(own, found, strict=True) if key not in keys}
    if new:
        keys |= _new_keys(engine, {key: _others(recent, one, found) for key, one in new.items()}, set(keys.values()))
    return [replace(one, key=keys[key]) for key, one in zip(own, found, strict=True)]


def _new_keys(engine: Engine, others: Mapping[str, Sequence[str]], taken: set[str]) -> dict[str, str]:
    """Keys for regressions that begin where none began: of the nearest one that is nobody's, else their own."""
    known = find_keys(engine, {one for some in others.values() for one in some})
    found = {}
    for own, some in others.items():
        found[own] = next((known[one] for one in some if one in known and known[one] not in taken), own)
        taken.add(found[own])
    try:
        return add_keys(engine, found)
    except SQLAlchemyError as error:
        # pages of a database that cannot be written have the keys of the present beginnings
        log.warning("keys of regressions were not stored", fault=str(error))
        return found


def _others(recent: Recent, one: Regression, found: Sequence[Regression]) -> list[str]:
    """Keys that a regression would have if it began elsewhere in its extent, the nearest first.

    It extends until it is fixed or the next one begins. A change point moves by less than two steps lie apart.
    """
    series = (one.case.case_id, one.implementation, one.device.slug)
    levels = recent.series.get(series, [])
    runs = [level.run for level in levels] if one.kind == "broken" else [level.run for level, _ in timed(levels)]
    places = {run.key: place for place, run in enumerate(runs)}
    start = places[one.run.key]
    ends = [other.run.key for other in found if other.series_key == series and other.kind == one.kind]
    ends += [one.fixed_in.key] if one.fixed_in else []
    end = min((places[key] for key in ends if places.get(key, -1) > start), default=len(runs))
    first = start - EDGE + 1 if one.kind == "slower" else start
    near = range(max(0, first), max(end, min(start + EDGE, len(runs))))
    order = sorted((place for place in near if place != start), key=lambda place: abs(place - start))
    return [one.key_at(runs[place]) for place in order if runs[place].project == one.run.project]
