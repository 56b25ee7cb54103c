"""Search of a history that came at once: regressions in runs that were never among the latest."""

from __future__ import annotations

from opgauge.harness.store.project_state import change_state, find_state
from opgauge.web.known_regressions import keyed
from opgauge.web.reader import RECENT, Reader
from opgauge.web.regression import RegressionState, find_regressions
from opgauge.web.remembered import remembered
from opgauge.web.scope import each_project

FARTHEST = 400
"""Runs of the history that are searched, the latest."""
STEP = RECENT // 2
"""Distance of the places from which the latest runs are looked at: each change lies well inside some of them."""


def look_back(reader: Reader) -> None:
    """Store the regressions of each project that were open at some time before the latest runs, and are since.

    The history is looked at as it was after some of its runs, one place after another, if runs have come since the last
    search that are not among the latest now.
    """
    for own in each_project(reader):
        last = max((run.key for run in own.runs()), default=0)
        examined = find_state(own.engine, own.own_project).examined
        if last == examined:
            continue
        is_searched = _search(own, examined)
        change_state(own.writing, own.own_project, is_news=is_searched, examined=last)


def _search(reader: Reader, examined: int) -> bool:
    """Look at the history from the first run that was never looked at; returns whether there is one."""
    history, latest = reader.history().runs, {run.key for run in reader.recent().runs}
    missed = [place for place, run in enumerate(history) if run.key > examined and run.key not in latest]
    if not missed:
        return False
    for end in range(max(missed[0], len(history) - FARTHEST) + STEP, len(history), STEP):
        recent = reader.recent_of(history[:end])
        confirmed = [one for one in find_regressions(recent) if one.state is not RegressionState.SUSPECTED]
        found = keyed(reader.writing, recent, confirmed)
        remembered(reader, recent, found, {run.id for run in history[:end]})
    return True
