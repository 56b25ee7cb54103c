"""Devices of runs, and the runs with results of each case on them."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from sqlalchemy import Engine

from opgauge.harness.store import queries
from opgauge.harness.store.run_queries import RunInfo

_WORDS = {"driver_major": "driver {}", "threads": "{} threads", "mig": "MIG {}"}
_SILENT = ("", "off", "unknown")
"""Facts of a fingerprint in words; values that are not worth one."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device, the same for all runs with the same hardware fingerprint.

    slug: for addresses. name: in the run (`cuda:0`). model: of the hardware. setting: the other facts of the
    fingerprint, in words: after a new driver a device is another one of the same model and name.
    """

    slug: str
    name: str
    model: str
    setting: str = ""

    @property
    def where(self) -> str:
        """Name and setting, to follow the model."""
        return f"{self.name}, {self.setting}" if self.setting else self.name

    def __str__(self) -> str:
        return f"{self.model} ({self.where})"


def device_of(run: RunInfo, name: str) -> DeviceInfo:
    """The device called `name` in a run."""
    facts = run.environment.hard_of(name)
    text = json.dumps([name, facts], sort_keys=True)
    slug = f"{name.replace(':', '')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    known = {key: value for key, value in facts.items() if key != "model" and value not in _SILENT}
    setting = ", ".join(_WORDS.get(key, f"{key} {{}}").format(value) for key, value in sorted(known.items()))
    return DeviceInfo(slug, name, facts.get("model") or name, setting)


def device_names(run: RunInfo) -> list[str]:
    """Names of the devices in the environment of a run."""
    return sorted({key.partition(".")[0] for key in run.environment.hard if "." in key})


class Places:
    """Numbers of the runs by case and device, read once and then extended: a few megabytes for a million results."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._seen = 0
        self._runs: dict[int, dict[str, array[int]]] = {}

    def advance(self) -> int:
        """Add the results stored since the last call; returns the number of the last result."""
        with self._lock:
            found, last = queries.list_places(self._engine, self._seen)
            for case_key, device, run_key in found:
                runs = self._runs.setdefault(case_key, {}).setdefault(device, array("q"))
                if not runs or runs[-1] != run_key:
                    runs.append(run_key)
            self._seen = last
        return last

    def of(self, case_keys: Iterable[int]) -> dict[str, frozenset[int]]:
        """The runs with results of a case, in any of its stored forms, by device."""
        found: dict[str, set[int]] = {}
        for key in case_keys:
            for device, runs in list(self._runs.get(key, {}).items()):
                found.setdefault(device, set()).update(runs.tolist())
        return {device: frozenset(runs) for device, runs in found.items()}
