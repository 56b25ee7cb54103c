"""Cases in which it is open who is fastest are measured again, each time in a fresh process.

Where buffers come to lie moves a GPU's median by a percent or two, that of a kernel of a microsecond by a tenth, on a
CPU by a tenth too, and stays as it is while the process lives: more samples there do not tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.result.result import Result, Status, Trial
from harness.result.summary import ALLOWED, rows

OPEN = {"cold": 0.05, "hot": 0.15}
"""The ratio that decides is this near to what is asked, as a share of it."""


def open_trials(results: Iterable[Result]) -> list[Trial]:
    """Trials of such cases, by what is known of all blocks so far; those that went wrong are left."""
    found = []
    for row in rows(results):
        ratio = row.deciding
        if ratio is not None and abs(ratio / ALLOWED[row.decides] - 1) <= OPEN[row.decides]:
            found += [result.trial for result in row.results.values() if result.status is Status.OK]
    return found
