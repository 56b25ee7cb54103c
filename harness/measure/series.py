"""Detection of samples that drift or have two modes, which a median hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from opgauge.harness.result.result import Result
from opgauge.harness.result.time_text import time_text

LEAST = 9
"""Least samples for a statement."""
DRIFT = 1.2
"""Ratio of the medians of the last and the first third that counts as drift."""
APART = 1.25
"""Least ratio of neighbouring sorted samples that separates two modes."""
LEAST_SHARE = 0.2
"""Least share of the samples in each mode."""


def describe(samples_ns: Sequence[float]) -> str:
    """Drift or modes of samples, in the order in which they were taken, in words; empty without either."""
    count = len(samples_ns)
    if count < LEAST or min(samples_ns) <= 0:
        return ""
    third = count // 3
    first, middle, last = (
        median(part) for part in (samples_ns[:third], samples_ns[third : count - third], samples_ns[-third:])
    )
    if max(first, last) > DRIFT * min(first, last) and min(first, last) <= middle <= max(first, last):
        return f"drifts from {time_text(first)} to {time_text(last)}"
    ordered = sorted(samples_ns)
    low, high = round(LEAST_SHARE * count), count - round(LEAST_SHARE * count)
    gap = max(range(low, high + 1), key=lambda at: ordered[at] / ordered[at - 1])
    below, above = ordered[:gap], ordered[gap:]
    spread = max(below[-1] / median(below), median(above) / above[0])
    if ordered[gap] > APART * ordered[gap - 1] and ordered[gap] / ordered[gap - 1] > spread:
        return f"two modes, {time_text(median(below))} and {time_text(median(above))}"
    return ""


def with_series(result: Result) -> Result:
    """The result, with the description of drift or modes in `extra` as `series`, if there is one."""
    told = describe(result.measurement.samples_ns) if result.measurement else ""
    extra = {key: value for key, value in result.extra.items() if key != "series"}
    return replace(result, extra={**extra, "series": told} if told else extra)
