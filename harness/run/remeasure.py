"""Remeasuring cases whose ranking is within noise, each time in a fresh process.

The addresses of buffers change a median by a percent or two on a GPU and by a tenth on a CPU. They are constant while a
process lives, so further samples in the same process cannot decide a ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from opgauge.harness.counting import counted
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.result.summary import ALLOWED, NOISE, Row, rows

UNDECIDED = {"cold": 0.05, "hot": 0.15}
"""Relative distance of the deciding ratio from its limit within which one process does not decide."""


def undecided_trials(results: Iterable[Result]) -> list[Trial]:
    """Valid trials of undecided cases, by the results of all processes so far."""
    found = []
    for row in rows(results):
        if is_undecided(row):
            found += [result.trial for result in row.results.values() if result.status is Status.OK]
    return found


def is_undecided(row: Row) -> bool:
    """Whether the limit lies among the ratios of all processes, or as near to them as they are to each other."""
    ratios = [ratio / ALLOWED[row.decides] for ratio in row.deciding_by_block]
    if not ratios:
        return False
    spread = UNDECIDED[row.decides] if len(ratios) == 1 else max(max(ratios) - min(ratios), NOISE - 1.0)
    return min(ratios) - spread <= 1.0 <= max(ratios) + spread


def rounds(
    trials: Sequence[Trial],
    most: int,
    results: Callable[[], Sequence[Sequence[Result]]],
    notify: Callable[[str], object],
) -> Iterator[tuple[int, Sequence[Trial]]]:
    """All trials, then those that are still undecided, each time with the number of the process that measures them.

    most: most further processes; those of an interrupted run count. results: all so far, of each run by itself.
    """
    measured = max((one.block for run in results() for one in run), default=0)
    yield 0, trials
    for block in range(measured + 1, most + 1):
        again = {trial.key: trial for run in results() for trial in undecided_trials(run)}
        if not again:
            return
        notify(f"{counted(len(again), 'trial')} again, in another process")
        yield block, list(again.values())
