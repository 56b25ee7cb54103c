"""What a median hides: samples that drift, or that fall into two groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from opgauge.harness.result.result import Result

LEAST = 9
"""Samples below which nothing is said."""
DRIFT = 1.2
"""Ratio of the medians of the last and the first third that counts as drift."""
APART = 1.25
"""Ratio of neighbouring samples, in order of size, that may separate two groups."""
LEAST_SHARE = 0.2
"""Share of the samples that each group has."""


def describe(samples_ns: Sequence[float]) -> str:
    """How samples, in the order in which they were taken, differ from noise about a median; empty where they do not."""
    count = len(samples_ns)
    if count < LEAST:
        return ""
    third = count // 3
    first, middle, last = (
        median(part) for part in (samples_ns[:third], samples_ns[third : count - third], samples_ns[-third:])
    )
    if max(first, last) > DRIFT * min(first, last) and min(first, last) <= middle <= max(first, last):
        return f"drifts from {first:.4g} to {last:.4g} ns"
    ordered = sorted(samples_ns)
    low, high = round(LEAST_SHARE * count), count - round(LEAST_SHARE * count)
    gap = max(range(low, high + 1), key=lambda at: ordered[at] / ordered[at - 1])
    below, above = ordered[:gap], ordered[gap:]
    spread = max(below[-1] / median(below), median(above) / above[0])
    if ordered[gap] > APART * ordered[gap - 1] and ordered[gap] / ordered[gap - 1] > spread:
        return f"two modes, {median(below):.4g} and {median(above):.4g} ns"
    return ""


def with_series(result: Result) -> Result:
    """The result; where its samples drift or have two modes, `extra` says so as `series`."""
    told = describe(result.measurement.samples_ns) if result.measurement else ""
    extra = {key: value for key, value in result.extra.items() if key != "series"}
    return replace(result, extra={**extra, "series": told} if told else extra)
