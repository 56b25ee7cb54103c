"""Marks of a case's history: change points, and regressions with their acknowledgements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opgauge.harness.judge.changepoint import ChangePoint
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo
from opgauge.web.known_regressions import known_regressions
from opgauge.web.level import Level
from opgauge.web.reader import Reader
from opgauge.web.regression import Regression, RegressionState
from opgauge.web.text import change_text

SAME_WITHIN = 3
"""Most runs between a change point of the drawn history and a regression of the recent runs that are one event."""
Changes = Mapping[str, Sequence[tuple[Level, Level, ChangePoint]]]
"""Change points by implementation, each with the runs before and after it."""


@dataclass(frozen=True, slots=True)
class HistoryMark:
    """An event of a series.

    before, run: last run before and first run after it. word: faster, slower or broken. text: the change. before_ns,
    after_ns: times before and after, None where there is none. regression: the regression that begins there, if one
    does.
    """

    implementation: str
    before: RunInfo
    run: RunInfo
    word: str
    text: str
    before_ns: float | None = None
    after_ns: float | None = None
    regression: Regression | None = None

    @property
    def state(self) -> str:
        """State of the regression; empty if there is none."""
        return str(self.regression.state) if self.regression else ""

    @property
    def acknowledgement(self) -> str:
        """Owner, last day and reason of the acknowledgement; empty if there is none."""
        given = self.regression.acknowledgement if self.regression else None
        return f"{given.owner}, until {given.until}: {given.reason}" if given else ""

    @property
    def label(self) -> str:
        """A few words for the figure."""
        is_plain = self.state in {"", RegressionState.OPEN}
        return f"{self.text} {self.implementation}" + ("" if is_plain else f", {self.state}")


def marks_of(reader: Reader, case_id: str, device: DeviceInfo, changes: Changes) -> list[HistoryMark]:
    """Change points and regressions of a case on a device, in the order of the history."""
    wanted = (case_id, device.slug)
    known = [one for one in known_regressions(reader) if (one.case.case_id, one.device.slug) == wanted]
    _, places = reader.ordered()
    found = [*_from_changes(changes, known, places), *map(_from_regression, known)]
    return sorted(found, key=lambda one: places.get(one.run.key, -1))


def _from_changes(changes: Changes, known: list[Regression], places: Mapping[int, int]) -> Iterator[HistoryMark]:
    """Marks of change points; takes the regressions that begin there out of `known`."""
    for name, listed in changes.items():
        for before, after, point in listed:
            word = "slower" if point.ratio > 1 else "faster"
            near = [one for one in known if (one.implementation, one.kind) == (name, word)]
            apart = {id(one): abs(places.get(one.run.key, -1) - places.get(after.run.key, -1)) for one in near}
            regression = min(near, key=lambda one: apart[id(one)], default=None)
            if regression is not None and apart[id(regression)] <= SAME_WITHIN:
                known.remove(regression)
            else:
                regression = None
            text = change_text(point.ratio)
            yield HistoryMark(name, before.run, after.run, word, text, point.before, point.after, regression)


def _from_regression(one: Regression) -> HistoryMark:
    """A regression that is no change point: suspected, or broken."""
    text = change_text(one.ratio) if one.ratio else one.detail.replace("_", " ")
    return HistoryMark(one.implementation, one.before, one.run, one.kind, text, one.before_ns, one.after_ns, one)
