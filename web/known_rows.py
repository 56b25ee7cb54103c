"""Rows that were read and stay known, by their numbers in the database, until runs are deleted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

from sqlalchemy import Engine

from opgauge.harness.store import listing
from opgauge.harness.store.queries import CaseInfo, StoredPoint
from opgauge.web.devices import Places
from opgauge.web.index import RunIndex

GENERATIONS = 2
"""Generations that are kept: while the next is being read, requests read the one before."""


class ResultNames:
    """Implementations, devices and projects that results have, read once and then extended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._seen = 0
        self._names: set[tuple[str, str, str]] = set()

    def advance(self) -> frozenset[tuple[str, str, str]]:
        """All of them, after reading those of results stored since the last call."""
        with self._lock:
            found, self._seen = listing.list_names(self._engine, self._seen)
            self._names.update(found)
            return frozenset(self._names)


class KnownRows:
    """Rows by number, shared by the readers of all projects.

    points: results by run, with what they depend on. run_series, made: answers by run. written: shares of the bytes
    that are written, by result. places, index, names: of all runs.
    """

    def __init__(self, engine: Engine) -> None:
        self.points: OrderedDict[int, tuple[Hashable, list[StoredPoint]]] = OrderedDict()
        self.run_series: OrderedDict[int, tuple[list[StoredPoint], Any]] = OrderedDict()
        self.made: OrderedDict[tuple[str, int], tuple[Hashable, Any]] = OrderedDict()
        self.cases: dict[int, CaseInfo] = {}
        self.written: dict[int, float | None] = {}
        self.places = Places(engine)
        self.index = RunIndex(engine)
        self.names = ResultNames(engine)


class RowGenerations:
    """Known rows by the number of the last deletion.

    SQLite gives the numbers of deleted rows to those that come next: a run that takes the place of a deleted one would
    otherwise be shown with its results.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[int, KnownRows] = OrderedDict()

    def of(self, deletion: int) -> KnownRows:
        """Rows that were read since this deletion."""
        found = self._known.get(deletion)
        if found is None:
            found = self._known.setdefault(deletion, KnownRows(self._engine))
            while len(self._known) > GENERATIONS:
                self._known.popitem(last=False)
        return found
