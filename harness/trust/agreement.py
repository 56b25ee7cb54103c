"""Agreement of our cold times with cuda-bench's, and with the kernels' own times by CUPTI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

BENCH_SHARE, BENCH_NS = 0.02, 500.0
"""Our time agrees with cuda-bench's within either."""
CUPTI_SHARE, CUPTI_LEAST_NS = 0.03, 10_000.0
"""Our time of a single kernel of at least this duration agrees with CUPTI's within this share."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Times of one trial by three clocks, in nanoseconds; None, with a reason, if a clock has no time.

    overhead_ns: our time of an empty kernel minus CUPTI's, which two events and a launch add to any call,
    cuda-bench's included.
    """

    op: str
    case: str
    case_id: str
    dtype: str
    implementation: str
    ours_ns: float | None
    bench_ns: float | None
    kernels_ns: float | None
    launches: int | None
    reason: str = ""
    overhead_ns: float | None = None

    @property
    def over_bench(self) -> float | None:
        """Our time over cuda-bench's, minus one."""
        return _excess(self.ours_ns, self.bench_ns)

    @property
    def over_kernels(self) -> float | None:
        """Our time over the kernels' own, minus one: event and launch overhead, and gaps."""
        return _excess(self.ours_ns, self.kernels_ns)

    @property
    def over_kernels_less_overhead(self) -> float | None:
        """The ratio `over_kernels` with an empty kernel's overhead subtracted from our time."""
        if self.ours_ns is None or self.overhead_ns is None:
            return None
        return _excess(self.ours_ns - self.overhead_ns, self.kernels_ns)

    @property
    def agrees_with_bench(self) -> bool | None:
        """Whether the times agree within 2 % or 0.5 µs; None if there is nothing to compare."""
        if self.ours_ns is None or self.bench_ns is None:
            return None
        return abs(self.ours_ns - self.bench_ns) <= max(BENCH_SHARE * self.bench_ns, BENCH_NS)

    @property
    def agrees_with_cupti(self) -> bool | None:
        """Whether the times agree within 3 %; None unless it is a single kernel of 10 µs or more."""
        return self._is_near(self.over_kernels)

    @property
    def agrees_less_overhead(self) -> bool | None:
        """The comparison `agrees_with_cupti` with an empty kernel's overhead subtracted from our time."""
        return self._is_near(self.over_kernels_less_overhead)

    def _is_near(self, over: float | None) -> bool | None:
        if over is None or self.kernels_ns is None or self.launches != 1 or self.kernels_ns < CUPTI_LEAST_NS:
            return None
        return abs(over) <= CUPTI_SHARE


def _excess(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs - 1 if ours and theirs else None


def summarize(found: Sequence[Agreement]) -> dict[str, Any]:
    """Numbers of compared trials and of those outside the limits, and typical differences, as plain JSON."""
    bench = [one for one in found if one.agrees_with_bench is not None]
    kernels = [one for one in found if one.agrees_with_cupti is not None]
    less = [one for one in found if one.agrees_less_overhead is not None]
    gaps = [one.ours_ns - one.kernels_ns for one in kernels if one.ours_ns and one.kernels_ns]
    return {
        "trials": len(found),
        "bench_compared": len(bench),
        "bench_outside": sum(not one.agrees_with_bench for one in bench),
        "bench_median_over": _median([one.over_bench for one in bench if one.over_bench is not None]),
        "cupti_compared": len(kernels),
        "cupti_outside": sum(not one.agrees_with_cupti for one in kernels),
        "cupti_median_over": _median([one.over_kernels for one in kernels if one.over_kernels is not None]),
        "cupti_median_gap_ns": _median(gaps),
        "less_overhead_compared": len(less),
        "less_overhead_outside": sum(not one.agrees_less_overhead for one in less),
        "less_overhead_median_over": _median(
            [one.over_kernels_less_overhead for one in less if one.over_kernels_less_overhead is not None]
        ),
        "overhead_ns": _median([one.overhead_ns for one in found if one.overhead_ns is not None]),
        "untimed": sum(one.ours_ns is None for one in found),
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def as_data(found: Sequence[Agreement], **facts: Any) -> dict[str, Any]:
    """Stored form of a comparison: its summary and the given facts, and every trial in `cases`."""
    return {**summarize(found), **facts, "cases": [asdict(one) for one in found]}


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """The summary in words."""
    singles = "single kernels ≥ 10 µs"
    found = [
        _share("cuda-bench", summary["bench_compared"], summary["bench_outside"], "2 % or 0.5 µs")
        + _typical(summary["bench_median_over"]),
        _share("CUPTI's kernel time", summary["cupti_compared"], summary["cupti_outside"], "3 %", singles)
        + _typical(summary["cupti_median_over"], summary["cupti_median_gap_ns"]),
    ]
    if summary["less_overhead_compared"]:
        outside = _share(
            "the same", summary["less_overhead_compared"], summary["less_overhead_outside"], "3 %", singles
        )
        less = f", less an empty kernel's {summary['overhead_ns'] / 1e3:.2f} µs of events and launch"
        found.append(outside + less + _typical(summary["less_overhead_median_over"]))
    return found


def _share(clock: str, compared: int, outside: int, limit: str, which: str = "trials") -> str:
    if not compared:
        return f"{clock}: nothing to compare with"
    return f"{clock}: {outside} of {compared} {which} outside {limit} ({100 * outside / compared:.1f} %)"


def _typical(over: float | None, gap_ns: float | None = None) -> str:
    if over is None:
        return ""
    gap = "" if gap_ns is None else f", {gap_ns / 1e3:+.2f} µs"
    return f"; median difference {100 * over:+.2f} %{gap}"
