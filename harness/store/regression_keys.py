"""Keys of regressions: the first that each had, under every one that it has had since."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import IntegrityError

from opgauge.harness.store.tables import RegressionKeyRow

CHUNK = 500
"""Keys in one IN list."""


def find_keys(engine: Engine, keys: Collection[str]) -> dict[str, str]:
    """First keys by key, of the keys that are known."""
    row, every = RegressionKeyRow, list(keys)
    found: dict[str, str] = {}
    with engine.connect() as connection:
        for start in range(0, len(every), CHUNK):
            query = select(row.key, row.first).where(row.key.in_(every[start : start + CHUNK]))
            found.update((key, first) for key, first in connection.execute(query))
    return found


def add_keys(engine: Engine, firsts: Mapping[str, str]) -> dict[str, str]:
    """Store first keys by key; returns those in force, some of which another process may have stored before."""
    known: dict[str, str] = {}
    while missing := [{"key": key, "first": first} for key, first in firsts.items() if key not in known]:
        try:
            with engine.begin() as connection:
                connection.execute(insert(RegressionKeyRow), missing)
        except IntegrityError:
            known = find_keys(engine, firsts)
        else:
            break
    return {**firsts, **known}
