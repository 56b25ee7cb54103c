"""Variation of series at one level, by which comparisons judge runs of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.judge.departure import half_widths
from opgauge.harness.judge.estimate import Floats
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.level import Level, SeriesKey
from opgauge.web.reader import Reader
from opgauge.web.regression import changes_of, timed


@dataclass(frozen=True, slots=True, eq=False)
class SteadySeries:
    """Series by the places of their runs: logs of times, and the part between change points that each time is in.

    places: by number of the run. rows: of the arrays, by series. logs, parts: (series, places), with a last row for a
    series without runs; the part is -1 and the log 0 where a run has no time. Logs are without the slow trend of their
    series: a drift is a change, not variation between two runs.
    """

    places: Mapping[int, int]
    rows: Mapping[SeriesKey, int]
    logs: Floats
    parts: NDArray[np.int16]

    @classmethod
    def of(cls, series: Mapping[SeriesKey, Sequence[Level]], runs: Sequence[RunInfo]) -> Self:
        """The parts of each series; `runs` has all runs in order."""
        places = {run.key: place for place, run in enumerate(runs)}
        logs = np.zeros((len(series) + 1, len(runs)))
        parts = np.full(logs.shape, -1, np.int16)
        for row, levels in enumerate(series.values()):
            known = timed(levels)
            times = [time for _, time in known]
            changes = changes_of(times)
            steps = {point.index for point in changes.points}
            columns = [places[level.run.key] for level, _ in known]
            logs[row, columns] = np.log(times) - (changes.path or 0.0)
            parts[row, columns] = np.cumsum([place in steps for place in range(len(known))])
        return cls(places, {key: row for row, key in enumerate(series)}, logs, parts)

    def longest_parts(self, keys: Sequence[SeriesKey], outside: Sequence[int]) -> tuple[Floats, NDArray[np.bool_]]:
        """Logs of the times of some series, and which of them are in the longest part: its steps are no noise.

        Runs at the places `outside` do not count for the length either.
        """
        chosen = np.array([self.rows.get(key, -1) for key in keys], np.intp)
        parts = self.parts[chosen]
        parts[:, list(outside)] = -1
        used = (parts >= 0).any(axis=0)
        parts = parts[:, used]
        sizes = np.stack([(parts == number).sum(axis=1) for number in range(int(parts.max(initial=0)) + 1)])
        longest = sizes.argmax(axis=0)
        return self.logs[chosen][:, used], np.asarray(parts == longest[:, None])


def known_steady(reader: Reader) -> SteadySeries:
    """Parts of all recent series, computed once for each state of the data."""

    def make() -> SteadySeries:
        recent = reader.recent()
        return SteadySeries.of(recent.series, recent.runs)

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
        known.update(zip(missing, half_widths(*steady.longest_parts(missing, outside)).tolist(), strict=True))
    return [known[key] for key in keys]
