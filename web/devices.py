"""Devices and runs with results of each case, read once and then extended."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from threading import Lock

from sqlalchemy import Engine

from opgauge.harness.store import queries


class Places:
    """Runs by case and device, by their numbers: what a million results say is a few megabytes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._seen = 0
        self._runs: dict[int, dict[str, array[int]]] = {}

    def advance(self) -> int:
        """Take in the results that have come since; gives the number of the last."""
        with self._lock:
            found, last = queries.list_places(self._engine, self._seen)
            for case_key, device, run_key in found:
                runs = self._runs.setdefault(case_key, {}).setdefault(device, array("q"))
                if not runs or runs[-1] != run_key:
                    runs.append(run_key)
            self._seen = last
        return last

    def of(self, case_keys: Iterable[int]) -> dict[str, frozenset[int]]:
        """The runs that have results of a case, in all its ways of being written, by device."""
        found: dict[str, set[int]] = {}
        for key in case_keys:
            for device, runs in list(self._runs.get(key, {}).items()):
                found.setdefault(device, set()).update(runs.tolist())
        return {device: frozenset(runs) for device, runs in found.items()}
