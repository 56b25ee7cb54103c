"""Cases in which it is open who is fastest are measured again, each time in a fresh process.

Where buffers come to lie moves a GPU's median by a percent or two, that of a kernel of a microsecond by a tenth, on a
CPU by a tenth too, and stays as it is while the process lives: more samples there do not tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.result.summary import ALLOWED, NOISE, Row, rows

OPEN = {"cold": 0.05, "hot": 0.15}
"""The ratio that decides is this near to what is asked, as a share of it, in the first process."""


def open_trials(results: Iterable[Result]) -> list[Trial]:
    """Trials of such cases, by what is known of all blocks so far; those that went wrong are left."""
    found = []
    for row in rows(results):
        if is_open(row):
            found += [result.trial for result in row.results.values() if result.status is Status.OK]
    return found


def is_open(row: Row) -> bool:
    """Whether what is asked lies among the ratios of all processes, or no further off than they from each other."""
    ratios = [ratio / ALLOWED[row.decides] for ratio in row.deciding_by_block]
    if not ratios:
        return False
    spread = OPEN[row.decides] if len(ratios) == 1 else max(max(ratios) - min(ratios), NOISE - 1.0)
    return min(ratios) - spread <= 1.0 <= max(ratios) + spread
