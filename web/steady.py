"""Variation of series at one level, by which comparisons judge runs of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.judge.departure import half_widths
from opgauge.harness.judge.estimate import Floats
from opgauge.web.level import Level, SeriesKey
from opgauge.web.reader import Reader
from opgauge.web.regression import change_points, timed


@dataclass(frozen=True, slots=True, eq=False)
class SteadyParts:
    """A series by the place of its runs: logs of its times, and the part between change points that each is in.

    parts: -1 for a run without a time, whose log is 0.
    """

    logs: Floats
    parts: NDArray[np.int16]

    @classmethod
    def of(cls, levels: Sequence[Level], places: Mapping[int, int]) -> Self:
        """The parts of a series; `places` of all runs by number."""
        logs, parts = np.zeros(len(places)), np.full(len(places), -1, np.int16)
        known = timed(levels)
        if known:
            steps = {id(point[1]) for point in change_points(levels)}
            columns = [places[level.run.key] for level, _ in known]
            logs[columns] = np.log([time for _, time in known])
            parts[columns] = np.cumsum([id(level) in steps for level, _ in known])
        return cls(logs, parts)


@dataclass(frozen=True, slots=True, eq=False)
class SteadySeries:
    """Parts of all recent series. places: of their runs by number. nothing: parts of a series without runs."""

    places: Mapping[int, int]
    parts: Mapping[SeriesKey, SteadyParts]
    nothing: SteadyParts


def known_steady(reader: Reader) -> SteadySeries:
    """Parts of all recent series, computed once for each state of the data."""

    def make() -> SteadySeries:
        recent = reader.recent()
        places = {run.key: place for place, run in enumerate(recent.runs)}
        parts = {key: SteadyParts.of(levels, places) for key, levels in recent.series.items()}
        return SteadySeries(places, parts, SteadyParts.of((), places))

    return reader.cache.get("steady series", make)


def series_half_widths(reader: Reader, keys: Sequence[SeriesKey], left_out: Sequence[int]) -> list[float]:
    """Half width of the log ratio of two runs that a series explains by itself, without the runs `left_out`.

    Those are the compared ones: the change between them is in question. Change points are those of the whole series,
    as finding them takes longer than all else.
    """
    steady = known_steady(reader)
    outside = tuple(sorted(steady.places[key] for key in set(left_out) if key in steady.places))
    known: dict[SeriesKey, float] = reader.cache.get(("half widths", outside), dict)
    missing = [key for key in dict.fromkeys(keys) if key not in known]
    if missing:
        series = [steady.parts.get(key, steady.nothing) for key in missing]
        known.update(zip(missing, half_widths(*longest_parts(series, outside)).tolist(), strict=True))
    return [known[key] for key in keys]


def longest_parts(series: Sequence[SteadyParts], outside: Sequence[int]) -> tuple[Floats, NDArray[np.bool_]]:
    """Logs of the times of several series, and which of them are in the longest part: its steps are no noise.

    Runs at the places `outside` do not count for the length either.
    """
    logs, parts = (np.stack([getattr(one, name) for one in series]) for name in ("logs", "parts"))
    parts[:, list(outside)] = -1
    used = (parts >= 0).any(axis=0)
    logs, parts = logs[:, used], parts[:, used]
    sizes = np.stack([(parts == number).sum(axis=1) for number in range(int(parts.max(initial=0)) + 1)])
    longest = sizes.argmax(axis=0)
    return logs, np.asarray(parts == longest[:, None])
