"""A bar for those who wait at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Self

from opgauge.harness.result.result import Trial


class Progress:
    """A bar on stderr, silent where that is no terminal."""

    def __init__(self, total: int) -> None:
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def follow(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """The trials, each named on the bar as it begins."""
        for trial in trials:
            self.name(trial)
            yield trial

    def name(self, trial: Trial) -> None:
        """Say which trial is on."""
        if self._bar is not None:
            text = f"{trial.case.op} · {trial.case.name} · {trial.implementation}"
            self._bar.update(self._task, description=text.replace("[", "\\["))

    def advance(self) -> None:
        """One more is finished."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def finished(self, trial: Trial) -> None:
        """This one is finished."""
        self.name(trial)
        self.advance()
