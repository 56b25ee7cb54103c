"""Figure of a case's history: medians by commit with intervals, change points, regressions, and a range slider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np

from opgauge.harness.result.summary import OPTIMIZED
from opgauge.harness.store.history import History
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.charts import DIGITS, LABEL, SYMBOLS, as_json, literal, trace, unit_of
from opgauge.web.commits import CommitBook, known_commits
from opgauge.web.level import Level
from opgauge.web.marks import HistoryMark
from opgauge.web.reader import Reader
from opgauge.web.text import time_text

NEAR = 4.0
"""Series whose usual time exceeds that of the first by this factor are hidden until chosen in the legend."""
LABELLED = 12
"""Most marks with a label, the newest; others are drawn as lines."""
ROWS = 3
"""Rows over which labels are spread, so that neighbours do not overlap."""
SLIDER = {"visible": True, "thickness": 0.12}
"""The range slider below a time axis."""
SLIDER_COMMITS = 3
"""Fewest commits for which there is a range slider."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Dates and labels of runs on a time axis."""

    history: History
    commits: CommitBook
    _labels: dict[int, str] = field(default_factory=dict)
    _dates: dict[int, str] = field(default_factory=dict)

    def date(self, run: RunInfo) -> str:
        """Date of the commit of a run, as Plotly reads it."""
        if run.key not in self._dates:
            self._dates[run.key] = self.history.order(run)[0].isoformat(" ")[:19]
        return self._dates[run.key]

    def label(self, run: RunInfo) -> str:
        """Commit and run, with author and subject."""
        if run.key not in self._labels:
            self._labels[run.key] = self.commits.label(run)
        return self._labels[run.key]

    def axis(self, runs: Iterable[RunInfo]) -> dict[str, Any]:
        """Layout of the axis for these runs."""
        found = {self.history.order(run)[0] for run in runs}
        axis: dict[str, Any] = {"type": "date", "title": {"text": "date of the commit"}}
        if len(found) == 1:
            # the axis of a single commit would count milliseconds
            (middle,) = found
            axis["range"] = [(middle + way * timedelta(hours=12)).isoformat(" ")[:19] for way in (-1, 1)]
        elif len(found) >= SLIDER_COMMITS:
            axis["rangeslider"] = SLIDER
        return axis


def timeline(reader: Reader) -> Timeline:
    """Dates and labels of the runs of a project."""
    return reader.cache.get("timeline", lambda: Timeline(reader.history(), known_commits(reader)))


def history_figure(
    series: Mapping[str, Sequence[Level]],
    quartiles: Mapping[tuple[int, str], tuple[float, float]],
    marks: Sequence[HistoryMark],
    times: Timeline,
    beside: Mapping[str, Sequence[Level]] | None = None,
) -> str:
    """Medians by commit with an interval each; marks as rings and labelled lines.

    quartiles: by run and implementation, for runs of one process. beside: runs of other branches and modified files,
    drawn as open points.
    """
    usual = {name: median(found) for name, levels in series.items() if (found := _times(levels))}
    first = next(iter(usual.values()), 0.0)
    near = {name for name, time in usual.items() if time <= NEAR * first}
    unit, size = unit_of(time for name, time in usual.items() if name in near)
    drawing = _Drawing(times, unit, size)
    traces: list[dict[str, Any]] = []
    for place, (name, levels) in enumerate(series.items()):
        line = drawing.line(name, levels, quartiles, SYMBOLS[place % len(SYMBOLS)])
        traces.append({**line, "visible": True if name in near else "legendonly"})
        if name in near:
            traces += drawing.rings([mark for mark in marks if mark.implementation == name])
            traces += drawing.open_points(name, (beside or {}).get(name, ()))
    shown = [mark for mark in marks if mark.implementation in near]
    runs = list({level.run.key: level.run for levels in series.values() for level in levels}.values())
    return as_json(
        traces,
        xaxis=times.axis(runs),
        # a range slider would otherwise forbid to zoom in on times
        yaxis={"title": {"text": unit}, "rangemode": "tozero", "fixedrange": False},
        shapes=[drawing.upright(mark) for mark in shown],
        annotations=drawing.labels(shown, runs),
        hovermode="closest",
        meta={"slot": "figure"},
    )


def _times(levels: Sequence[Level]) -> list[float]:
    return [level.median_ns for level in levels if level.median_ns]


def slot_of(mark: HistoryMark) -> str:
    """Colour of a mark: that of a verdict; suspected ones as undecided, acknowledged and fixed ones as no change."""
    by_state = {"suspected": "v-undecided", "acknowledged": "v-same", "fixed": "v-same"}
    return by_state.get(mark.state, f"v-{mark.word}")


class _Drawing:
    """Parts of the figure, in one unit on one time axis."""

    def __init__(self, timeline: Timeline, unit: str, size: float) -> None:
        self._timeline = timeline
        self._size = size
        self._template = f"%{{text}}<br>%{{x}}<br>%{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>"
        self._texts: dict[int, tuple[str, str]] = {}

    def _named(self, run: RunInfo) -> tuple[str, str]:
        """Date and label of a run, made once for all series."""
        if run.key not in self._texts:
            self._texts[run.key] = (self._timeline.date(run), self._timeline.label(run))
        return self._texts[run.key]

    def line(
        self,
        name: str,
        levels: Sequence[Level],
        quartiles: Mapping[tuple[int, str], tuple[float, float]],
        symbol: str,
    ) -> dict[str, Any]:
        """Medians of an implementation with intervals."""
        known = [(level, level.median_ns) for level in levels if level.median_ns]
        spans = [_span(level, quartiles.get((level.run.key, name))) for level, _ in known]
        named = [self._named(level.run) for level, _ in known]
        lows, highs = np.array(spans).reshape(-1, 2).T / self._size
        ys = np.round(np.array([time for _, time in known]) / self._size, DIGITS)
        error = {
            "type": "data",
            "symmetric": False,
            "array": np.round(np.maximum(highs - ys, 0.0), DIGITS).tolist(),
            "arrayminus": np.round(np.maximum(ys - lows, 0.0), DIGITS).tolist(),
            "thickness": 1,
            "width": 2,
        }
        return trace(
            "scatter",
            name,
            mode="lines+markers",
            x=[date for date, _ in named],
            y=ys.tolist(),
            error_y=error,
            text=[label for _, label in named],
            customdata=[level.run.id for level, _ in known],
            marker={"size": 6, "symbol": symbol},
            line={"width": 1.5},
            hovertemplate=self._template,
        )

    def rings(self, marks: Sequence[HistoryMark]) -> list[dict[str, Any]]:
        """Rings around the first points after the marks, a trace for each colour."""
        found = []
        timed = [mark for mark in marks if mark.after_ns]
        for slot in dict.fromkeys(map(slot_of, timed)):
            mine = [mark for mark in timed if slot_of(mark) == slot]
            given = {
                "x": [self._timeline.date(mark.run) for mark in mine],
                "y": [round((mark.after_ns or 0.0) / self._size, DIGITS) for mark in mine],
                "text": [_explained(mark) for mark in mine],
                "customdata": [mark.run.id for mark in mine],
                "mode": "markers",
                "marker": {"size": 18, "symbol": "circle-open", "line": {"width": 2}},
                "showlegend": False,
                "hovertemplate": "%{text}<extra></extra>",
            }
            name = literal(f"{mine[0].implementation}: changes")
            found.append({"type": "scatter", "name": name, "meta": {"slot": slot}, **given})
        return found

    def open_points(self, name: str, levels: Sequence[Level]) -> list[dict[str, Any]]:
        """Runs that are not part of the history."""
        known = [level for level in levels if level.median_ns]
        if not known:
            return []
        runs = [level.run for level in known]
        texts = [literal(f"{run.branch or 'no branch'}{', modified' if run.dirty else ''}") for run in runs]
        given = {
            "x": [self._named(run)[0] for run in runs],
            "y": [(level.median_ns or 0.0) / self._size for level in known],
            "text": [f"{text} · {self._named(run)[1]}" for text, run in zip(texts, runs, strict=True)],
            "customdata": [run.id for run in runs],
            "mode": "markers",
            "marker": {"size": 8, "symbol": "circle-open"},
            "hovertemplate": self._template,
            "visible": True if name == OPTIMIZED else "legendonly",
        }
        return [{**trace("scatter", name, **given), "name": literal(f"{name}: other branches", LABEL)}]

    def upright(self, mark: HistoryMark) -> dict[str, Any]:
        """The line of a mark from the bottom of the figure to its top."""
        date = self._timeline.date(mark.run)
        line = {"width": 1, "dash": "dot"}
        ends = {"x0": date, "x1": date, "y0": 0, "y1": 1, "yref": "paper"}
        return {"type": "line", "name": slot_of(mark), "layer": "below", "line": line, **ends}

    def labels(self, marks: Sequence[HistoryMark], runs: Sequence[RunInfo]) -> list[dict[str, Any]]:
        """Labels of the newest marks, beside their lines on the side that has more room."""
        dates = sorted([self._timeline.history.order(run)[0] for run in runs]) if marks else []
        found = []
        for place, mark in enumerate(marks[-LABELLED:]):
            date = self._timeline.history.order(mark.run)[0]
            is_late = date - dates[0] > dates[-1] - date
            found.append(
                {
                    "name": slot_of(mark),
                    "text": literal(mark.label, LABEL),
                    "hovertext": _explained(mark),
                    "x": self._timeline.date(mark.run),
                    "y": 1 - 0.08 * (place % ROWS),
                    "yref": "paper",
                    "xanchor": "right" if is_late else "left",
                    "yanchor": "top",
                    "showarrow": False,
                }
            )
        return found


def _explained(mark: HistoryMark) -> str:
    """A mark in several lines: change, times, commit, acknowledgement."""
    state = f", {mark.state}" if mark.state else ""
    times = f"{time_text(mark.before_ns)} → {time_text(mark.after_ns)}" if mark.after_ns else ""
    lines = (f"{mark.word} {mark.text}{state}", times, f"since {mark.run.commit[:10] or mark.run.id[:8]}")
    return "<br>".join(literal(line, 120) for line in (*lines, mark.acknowledgement) if line)


def _span(level: Level, quartiles: tuple[float, float] | None) -> tuple[float, float]:
    if level.blocks > 1 or quartiles is None:
        middle = level.median_ns or 0.0
        return level.low_ns or middle, level.high_ns or middle
    return quartiles
