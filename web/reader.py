"""Data that several pages share: runs, their results without JSON, cases, series; each is read once.

A `Reader` is of one project, or of all. Readers of different projects share what does not depend on the project.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.store import Store, queries
from opgauge.harness.store.history import History, history_of
from opgauge.harness.store.project_state import find_state
from opgauge.harness.store.projects import (
    Commit,
    ProjectSettings,
    find_project,
    list_commits,
    list_projects,
    project_exists,
)
from opgauge.harness.store.queries import CaseInfo, StoredPoint
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.cache import Cache, ProjectCache
from opgauge.web.devices import DeviceInfo, device_names, device_of
from opgauge.web.known_rows import KnownRows, RowGenerations
from opgauge.web.level import Level, SeriesKey
from opgauge.web.run_series import RunSeries, series_of
from opgauge.web.waivers import WaiverFile, read

RECENT = 40
"""Runs of the history of each device that make up the series."""
RECENT_IN_ALL = 200
"""Runs of all devices that make up the series."""
MOST_RUNS = 256
MOST_CASES = 20_000
MOST_ANSWERS = 128
"""Most runs, cases and answers that are cached."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Recent:
    """The latest runs of the history on every device, and their series, oldest commit first.

    last_run: the newest commit's by device. work: a result with the least work, by case and device.
    """

    runs: tuple[RunInfo, ...] = ()
    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    last_run: dict[str, RunInfo] = field(default_factory=dict)
    cases: dict[str, CaseInfo] = field(default_factory=dict)
    series: dict[SeriesKey, list[Level]] = field(default_factory=dict)
    work: dict[tuple[str, str], StoredPoint] = field(default_factory=dict)


class Reader:
    """Reads one project, or all, through one cache; results of runs, which seldom change, are cached beyond it."""

    def __init__(self, store: Store, cache: Cache, waivers: Path | None = None) -> None:
        self.engine, self.writing = store.reading, store.engine
        self.waivers = waivers
        self.project: str | None = None
        self._shared = cache
        self._generations = RowGenerations(self.engine)
        self._devices: dict[tuple[str, str], DeviceInfo] = {}

    def of_project(self, project: str | None) -> Reader:
        """The same data of one project only."""
        found = copy(self)
        found.project = project
        return found

    @property
    def cache(self) -> ProjectCache:
        """Cache of the answers of this project."""
        return ProjectCache(self._shared, self.project)

    @property
    def _rows(self) -> KnownRows:
        """Rows that were read and stay known."""
        return self._generations.of(self._shared.get("deletion", partial(queries.last_deletion, self.engine)))

    def projects(self) -> list[tuple[str, int, datetime]]:
        """Projects with their number of runs and the start of the latest, latest first."""
        return self._shared.get("projects", lambda: list_projects(self.engine))

    def is_there(self) -> bool:
        """Whether the project exists, also without runs; the unnamed one does while there is no other."""
        listed = [name for name, _, _ in self.projects()]
        return self.project in {None, *(listed or [""])} or project_exists(self.engine, str(self.project))

    @property
    def settings(self) -> ProjectSettings:
        """Settings of the project; those of the only one if this reads all."""
        return self.cache.get("settings", lambda: find_project(self.engine, self.own_project))

    def forms_of(self, case_id: str) -> list[CaseInfo]:
        """All stored forms of a case with results of the project, the latest last; empty for an unknown one."""
        return queries.find_case(self.engine, case_id, self.project)

    def commits(self) -> dict[str, Commit]:
        """Known commits of the project by SHA."""
        return self.cache.get("commits", lambda: list_commits(self.engine, self.own_project))

    @property
    def own_project(self) -> str:
        """The project; the one that was measured last if this reads all."""
        return self.project if self.project is not None else next((name for name, _, _ in self.projects()), "")

    def result_names(self) -> frozenset[tuple[str, str]]:
        """Implementations with their devices, of all results of the project."""
        found = self._shared.get("result names", self._rows.names.advance)
        return frozenset((made, device) for made, device, name in found if self.project in {None, name})

    def runs(self) -> list[RunInfo]:
        """All runs of the project, latest first."""
        return self.cache.get("runs", self._runs)

    def _runs(self) -> list[RunInfo]:
        found = self._shared.get("all runs", self._rows.index.advance)
        return found if self.project is None else [run for run in found if run.project == self.project]

    def history(self) -> History:
        """Which runs are the history, in the order of their commits."""
        return self.cache.get("history", self._history)

    def _history(self) -> History:
        tips = find_state(self.engine, self.own_project).tips
        return history_of(self.runs(), self.commits(), self.settings.default_branch, tips)

    def before(self, run: RunInfo) -> RunInfo | None:
        """The run of the history before another, on the same hardware; None if there is none."""
        history = self.history()
        hard, place = run.environment.hard, history.order(run)
        earlier = (one for one in reversed(history.runs) if one.key != run.key and history.order(one) < place)
        return next((one for one in earlier if one.environment.hard == hard), None)

    def device(self, run: RunInfo, name: str) -> DeviceInfo:
        """The device called `name` in a run."""
        key = (run.id, name)
        found = self._devices.get(key)
        if found is None:
            if len(self._devices) > MOST_CASES:
                self._devices.clear()
            found = self._devices[key] = device_of(run, name)
        return found

    def places(self, case_keys: Iterable[int]) -> dict[str, tuple[DeviceInfo, list[RunInfo]]]:
        """Devices by slug, with the runs that have results of a case there, in the order of history.

        Runs beside the history are not among them; `beside` has those.
        """
        found: dict[str, tuple[DeviceInfo, list[RunInfo]]] = {}
        for name, keys in self._placed_runs(case_keys).items():
            # cases that are measured together have the same runs
            found.update(self.cache.get(("places", name, keys), partial(self._placed, name, keys)))
        return found

    def _placed_runs(self, case_keys: Iterable[int]) -> dict[str, frozenset[int]]:
        """Numbers of the runs with results of a case, by device."""
        places = self._rows.places
        self._shared.get("placed", places.advance)
        return places.of(case_keys)

    def _placed(self, name: str, keys: frozenset[int]) -> dict[str, tuple[DeviceInfo, list[RunInfo]]]:
        runs, order = self.ordered()
        found: dict[str, tuple[DeviceInfo, list[RunInfo]]] = {}
        for place in sorted([order[key] for key in keys if key in order]):
            run = runs[place]
            info = self.device(run, name)
            found.setdefault(info.slug, (info, []))[1].append(run)
        return found

    def places_beside(self, case_keys: Sequence[int]) -> dict[str, tuple[DeviceInfo, list[RunInfo]]]:
        """Devices by slug, without runs, on which a case was measured beside the history only."""
        found = {}
        for name, keys in self._placed_runs(case_keys).items():
            for run in self.history().beside:
                if run.key in keys:
                    info = self.device(run, name)
                    found[info.slug] = (info, list[RunInfo]())
        return found

    def beside(self, case_keys: Iterable[int], device: DeviceInfo) -> list[RunInfo]:
        """Runs with results of a case on a device that are not part of the history, oldest first."""
        keys = self._placed_runs(case_keys).get(device.name, frozenset())
        others = (run for run in self.history().beside if run.key in keys)
        return [run for run in others if self.device(run, device.name).slug == device.slug]

    def ordered(self) -> tuple[Sequence[RunInfo], dict[int, int]]:
        """The history, and the place of each run in it by its number."""

        def make() -> tuple[Sequence[RunInfo], dict[int, int]]:
            runs = self.history().runs
            return runs, {run.key: place for place, run in enumerate(runs)}

        return self.cache.get("order", make)

    def points(self, run_keys: Collection[int]) -> dict[int, list[StoredPoint]]:
        """Results of recent runs; unchanged ones come from memory."""
        counted, points = queries.count_results(self.engine, run_keys), self._rows.points
        self._shared.get("results by run", dict[int, Hashable]).update({key: counted.get(key) for key in run_keys})
        found = {}
        for key in run_keys:
            known = points.get(key)
            if known is None or known[0] != counted.get(key):
                known = (counted.get(key), queries.list_points(self.engine, key) if key in counted else [])
                points[key] = known
                while len(points) > MOST_RUNS:
                    points.popitem(last=False)
            found[key] = known[1]
        return found

    def _count_of(self, run: RunInfo) -> Hashable:
        """Number of results of a run, counted once for each state of the data."""
        counted = self._shared.get("results by run", dict[int, Hashable])
        if run.key not in counted:
            counted[run.key] = queries.count_results(self.engine, [run.key]).get(run.key)
        return counted[run.key]

    def cached_for_run(self, name: str, run: RunInfo, make: Callable[[], Answer]) -> Answer:
        """The answer of `make` from a run's results, cached until these change."""
        key, answers = (name, run.key), self._rows.made
        # pages of neighbouring runs are requested together
        with self._shared.turn(("made", key)):
            count, known = self._count_of(run), answers.get(key)
            if known is None or known[0] != count:
                known = answers[key] = (count, make())
                while len(answers) > MOST_ANSWERS:
                    answers.popitem(last=False)
        found: Answer = known[1]
        return found

    def points_of(self, run: RunInfo, op: str | None = None) -> list[StoredPoint]:
        """Results of a run, or of one op in it; old runs do not displace recent ones in memory."""
        known = self._rows.points.get(run.key)
        if known is not None and known[0] == self._count_of(run):
            return known[1]
        if op is None:
            return self.cached_for_run("points", run, lambda: queries.list_points(self.engine, run.key))
        keys = queries.list_case_keys(self.engine, run.key, op)
        return queries.list_points(self.engine, run.key, keys) if keys else []

    def cases(self, keys: Collection[int]) -> dict[int, CaseInfo]:
        """Cases by number; they never change."""
        rows = self._rows
        missing = [key for key in set(keys) if key not in rows.cases]
        if missing:
            before = {} if len(rows.cases) > MOST_CASES else rows.cases
            rows.cases = {**before, **queries.load_cases(self.engine, missing)}
        known = rows.cases
        return {key: known[key] for key in keys if key in known}

    def written_shares(self, points: Iterable[StoredPoint]) -> dict[int, float]:
        """Shares of the bytes that cases write, by number of the case, from a result of each; without unknown ones."""
        chosen = {point.key: point.case_key for point in points}
        rows = self._rows
        missing = [key for key in chosen if key not in rows.written]
        if missing:
            before = {} if len(rows.written) > MOST_CASES else rows.written
            shares = queries.list_written_shares(self.engine, missing)
            rows.written = {**before, **dict.fromkeys(missing), **shares}
        known = rows.written
        return {case: share for key, case in chosen.items() if (share := known.get(key)) is not None}

    def ceilings(self, run: RunInfo) -> dict[str, Ceilings]:
        """Achieved peaks of the devices of a run."""
        return self.cache.get(
            ("ceilings", run.key), lambda: queries.list_ceilings(self.engine, [run.key]).get(run.key, {})
        )

    def waiver_file(self) -> WaiverFile:
        """Contents of the waiver file."""
        return self.cache.get("waiver file", lambda: read(self.waivers))

    def recent(self) -> Recent:
        """The latest runs of the history on every device, as series."""
        return self.cache.get("recent", lambda: self.recent_of(self.history().runs))

    def recent_of(self, history: Sequence[RunInfo]) -> Recent:
        """The latest of some runs on every device, which are in the order of history, as series."""
        runs = list(reversed(self._latest_by_device(reversed(history))))
        points = self.points([run.key for run in runs])
        infos = self.cases({point.case_key for found in points.values() for point in found})
        recent = Recent(tuple(run for run in runs if points[run.key]))
        made = self._rows.run_series
        for run in recent.runs:
            known = made.get(run.key)
            if known is None or known[0] is not points[run.key]:
                known = made[run.key] = (points[run.key], series_of(run, points[run.key], infos, self.device))
                while len(made) > MOST_RUNS:
                    made.popitem(last=False)
            self._enter(recent, run, known[1])
        return recent

    def _latest_by_device(self, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Ended runs, newest commit first, at most `RECENT` of each device."""
        taken: dict[str, int] = {}
        found = []
        for run in runs:
            slugs = [self.device(run, name).slug for name in device_names(run)] or [""]
            if run.status == "running" or all(taken.get(slug, 0) >= RECENT for slug in slugs):
                continue
            found.append(run)
            for slug in slugs:
                taken[slug] = taken.get(slug, 0) + 1
            if len(found) == RECENT_IN_ALL:
                break
        return found

    @staticmethod
    def _enter(recent: Recent, run: RunInfo, series: RunSeries) -> None:
        recent.cases.update(series.cases)
        recent.work.update(series.work)
        for slug, device in series.devices.items():
            recent.devices[slug] = device
            recent.last_run[slug] = run
        for key, level in series.levels.items():
            recent.series.setdefault(key, []).append(level)
