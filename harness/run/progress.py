"""Progress on standard error: a bar for a terminal, lines of text or JSON for a log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from time import monotonic
from typing import Any, Self

from opgauge.harness.result.result import Result, Trial


class ProgressStyle(StrEnum):
    """Form of progress. auto: a bar on a terminal, nothing elsewhere."""

    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"


class Progress:
    """Progress of `total` trials, as a context manager."""

    def __init__(self, total: int, style: ProgressStyle = ProgressStyle.AUTO) -> None:
        self._total = total
        self._done = 0
        self._style = style
        self._started = monotonic()
        self._bar: Any = None
        if style is ProgressStyle.AUTO and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            text = TextColumn("{task.description}", markup=False)
            columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), text)
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def follow(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """The trials, each displayed on the bar as it begins."""
        for trial in trials:
            if self._bar is not None:
                self._bar.update(self._task, description=_title(trial))
            yield trial

    def finished(self, trial: Trial, result: Result | None = None) -> None:
        """Count a trial as finished."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=_title(trial))
        elif self._style is ProgressStyle.PLAIN:
            self._write(self._line(trial, result))
        elif self._style is ProgressStyle.JSON:
            self._write(json.dumps(self._record(trial, result), allow_nan=False))

    def _write(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201  this is the log

    def _line(self, trial: Trial, result: Result | None) -> str:
        elapsed = monotonic() - self._started
        left = elapsed / self._done * (self._total - self._done)
        status = "" if result is None else f": {result.status}"
        return f"[{self._done}/{self._total}] {_title(trial)}{status} ({elapsed:.0f} s, {left:.0f} s left)"

    def _record(self, trial: Trial, result: Result | None) -> dict[str, Any]:
        measured = result.measurement if result is not None else None
        return {
            "done": self._done,
            "total": self._total,
            "elapsed_s": round(monotonic() - self._started, 3),
            "op": trial.case.op,
            "case": trial.case.name,
            "dtype": trial.case.dtype,
            "implementation": trial.implementation,
            "device": trial.device,
            "status": None if result is None else str(result.status),
            "median_ns": measured.median_ns if measured is not None and measured.samples_ns else None,
        }


def _title(trial: Trial) -> str:
    return f"{trial.case.op} · {trial.case.name} · {trial.implementation}"
