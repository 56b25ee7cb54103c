"""Expected duration of trials, from results of the same or similar trials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from opgauge.harness.counting import counted
from opgauge.harness.result.result import Result, Trial

Exact = tuple[str, str, str]
Similar = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """Expected seconds of trials. known.

    Number of trials of which this trial, or one of the same op, was measured before.
    """

    seconds: float
    known: int
    trials: int

    def __str__(self) -> str:
        if not self.known:
            return f"at least {duration_text(self.seconds)}: no similar trial was measured before"
        measured = f"{self.known} of {counted(self.trials, 'trial')}"
        return f"about {duration_text(self.seconds)}, from earlier results of {measured}"


def expect(trials: Sequence[Trial], earlier: Iterable[Result], budget_s: float) -> ExpectedDuration:
    """The expected duration of `trials`, from the seconds by phase in results of earlier runs.

    A trial without results counts as the median of its op on that device, then of all; without any as `budget_s`.
    """
    exact: dict[Exact, list[float]] = {}
    similar: dict[Similar, list[float]] = {}
    for result in earlier:
        seconds = sum(result.extra.get("phases_s", {}).values())
        if seconds:
            exact.setdefault(result.trial.key, []).append(seconds)
            similar.setdefault(_similar(result.trial), []).append(seconds)
    everything = [value for values in exact.values() for value in values]
    total, known = 0.0, 0
    for trial in trials:
        values = exact.get(trial.key) or similar.get(_similar(trial))
        known += values is not None
        total += median(values or everything or [budget_s])
    return ExpectedDuration(total, known, len(trials))


def duration_text(seconds: float) -> str:
    """A duration in hours, minutes and seconds."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _similar(trial: Trial) -> Similar:
    return trial.case.op, trial.device
