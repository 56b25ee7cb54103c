"""Summary of a run as plain values: a record per result, and a row per case with its implementations side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Any

from opgauge.harness.case.casejson import case_to_json
from opgauge.harness.result.ceilings import HALF, Ceilings, PeakBound
from opgauge.harness.result.result import Environment, Footprint, Measurement, Result, Status
from opgauge.harness.result.time_text import time_text

PEERS = ("torch", "torch_compile", "torchvision")
"""Implementations of other libraries."""
MOST_SHARE = 1.5
"""Ratio of bound to time above which a time is impossible; peaks and cases are measured minutes apart."""
COARSE_NS = 10_000.0
"""Time below which a GPU's cold time is mostly launch and event overhead, so that the hot time decides."""
NOISE = 1.02
"""Difference of medians of the same code in two processes, at the 10 to 50 µs of most cases on an H200."""
ALLOWED = {"cold": 1.0, "hot": 1.05}
"""Largest ratio of optimized to the fastest peer that is not slower."""
BASELINE, OPTIMIZED = "baseline", "optimized"
"""Implementations that every op has."""


def gbps(result: Result) -> float | None:
    """Least bytes over median time, in GB/s."""
    time = _cold(result.measurement) if result.measurement else None
    return result.bytes / time if time and result.bytes else None


def share_of_ceiling(result: Result, ceilings: Mapping[str, Ceilings]) -> float | None:
    """Share of the ceiling, 0 to 1.

    The ceiling is a copy of the same number of bytes (a fill if nothing is read) on the device in the same run, or
    the matrix rate if the least work takes longer by it.
    """
    bound = peak_bound(result, ceilings)
    time = _cold(result.measurement) if result.measurement else None
    return bound.time_ns / time if bound and time else None


def peak_bound(result: Result, ceilings: Mapping[str, Ceilings]) -> PeakBound | None:
    """Least time of a measured result at the achieved peaks of its device in the same run."""
    reached = ceilings.get(result.trial.device)
    if reached is None or result.measurement is None or not _cold(result.measurement):
        return None
    return bound_of(reached, result.bytes, result.flops, result.trial.case.dtype, result.extra)


def bound_of(
    reached: Ceilings, nbytes: int, flops: int, dtype: str, extra: Mapping[str, Any] | None = None
) -> PeakBound | None:
    """Least time of this work at the achieved peaks.

    extra: of the result, with the share of bytes that is written, and `relaxed` if its implementation declares it.
    """
    known = extra or {}
    written = 1.0 if known.get("reads") is False else float(known.get("written_share", HALF))
    return reached.bound(nbytes, flops, dtype, written=written, relaxed=float(known.get("relaxed") or 1.0) > 1)


def impossible_below(
    reached: Ceilings, nbytes: int, flops: int, dtype: str, extra: Mapping[str, Any] | None = None
) -> PeakBound | None:
    """Least time that a measurement may come near; None where launches or calls decide instead of the work."""
    bound = bound_of(reached, nbytes, flops, dtype, extra)
    if bound is None:
        return None
    least_ns, smallest = bound.time_ns, min(reached.sizes, default=0)
    if nbytes < smallest and not bound.peak.startswith("matrix"):
        least_ns *= nbytes / smallest  # most of it is the launch
    return None if least_ns < COARSE_NS / 10 else PeakBound(least_ns, bound.peak)


def exceeds_peaks(result: Result, ceilings: Mapping[str, Ceilings]) -> bool:
    """Whether a time is below what the device's achieved peaks allow, by more than noise."""
    return _exceeded(result, ceilings, NOISE) is not None


def within_peaks(result: Result, ceilings: Mapping[str, Ceilings]) -> Result:
    """The result; marked wrong if its time is far below the least time that the device allows for its work."""
    bound = _exceeded(result, ceilings, MOST_SHARE)
    if bound is None or result.measurement is None:
        return result
    took, least = time_text(result.measurement.median_ns), time_text(bound.time_ns)
    return replace(
        result, status=Status.WRONG, reason=f"faster than the device allows: {took}, at least {least} by {bound.peak}"
    )


def _exceeded(result: Result, ceilings: Mapping[str, Ceilings], most: float) -> PeakBound | None:
    """The bound of a valid result, if it is more than `most` times the median."""
    reached = ceilings.get(result.trial.device)
    if result.status is not Status.OK or reached is None or not (result.measurement and result.measurement.samples_ns):
        return None
    bound = impossible_below(reached, result.bytes, result.flops, result.trial.case.dtype, result.extra)
    return bound if bound is not None and result.measurement.median_ns * most < bound.time_ns else None


def remarks(extra: Mapping[str, Any], measurement: Mapping[str, Any] | Measurement | None) -> list[str]:
    """Properties of the samples that a median hides, in words.

    Contention, drift, modes, inputs that did not change, threads that the kernel left waiting.
    """
    if isinstance(measurement, Measurement):
        contended = measurement.contended
    else:
        contended = (measurement or {}).get("contended", 0)
    waiting = [str(one) for one in extra.get("waiting_threads") or ()]
    return [
        *([f"other processes used the cores in {contended} sample{'s' * (contended != 1)}"] if contended else []),
        *([str(extra["series"])] if extra.get("series") else []),
        *(["inputs did not change between samples"] if extra.get("varied") is False else []),
        *([f"left threads that wait ({', '.join(waiting[:3])})"] if waiting else []),
    ]


def origin(run_id: str, started: datetime, environment: Environment) -> dict[str, Any]:
    """Columns that identify the run: the same for all results of a run."""
    return {
        "run": run_id,
        "started": started.isoformat(),
        "host": environment.soft.get("host", ""),
        "project": environment.project,
        "branch": environment.branch,
        "commit": environment.commit,
        "commit_time": environment.commit_time,
    }


def record(result: Result, ceilings: Mapping[str, Ceilings], where: Mapping[str, Any], model: str) -> dict[str, Any]:
    """One result as a flat JSON object, null for unknown values. where: from `origin`; model: model of the device."""
    case, measurement, check = result.trial.case, result.measurement, result.check
    content = case_to_json(case)
    quantiles = result.extra.get("quantiles_ns") or [None] * 4
    footprint = (measurement.footprint if measurement else None) or Footprint()
    bound = peak_bound(result, ceilings)
    return {
        **where,
        "op": case.op,
        "case": case.name,
        "case_id": case.id,
        "shapes": content["shapes"],
        "dtype": case.dtype,
        "params": content["params"],
        "tags": content["tags"],
        "published": content["published"],
        "implementation": result.trial.implementation,
        "backend": result.trial.backend,
        "device": result.trial.device,
        "model": model,
        "process": result.block,
        "status": str(result.status),
        "reason": result.reason,
        "median_ns": measurement.median_ns if measurement and measurement.samples_ns else None,
        "min_ns": quantiles[0],
        "p25_ns": quantiles[1],
        "p75_ns": quantiles[2],
        "samples": quantiles[3],
        "hot_ns": measurement.hot_ns if measurement else None,
        "timer": measurement.timer if measurement else None,
        "peak_bytes": measurement.peak_bytes if measurement else None,
        "launches": footprint.launches,
        "allocations": footprint.allocations,
        "registers": footprint.registers,
        "spill_bytes": footprint.spill_bytes,
        "kernels_ns": result.profile.time_ns if result.profile else None,
        "host_gap_ns": result.host_gap_ns,
        "max_abs_error": _finite(check.max_abs_error) if check else None,
        "max_rel_error": _finite(check.max_rel_error) if check else None,
        "worst": _finite(check.worst) if check else None,
        "bytes": result.bytes,
        "flops": result.flops,
        "gbps": gbps(result),
        "ceiling_share": share_of_ceiling(result, ceilings),
        "bound": bound.peak if bound else None,
        "contended": measurement.contended if measurement else None,
        "series": result.extra.get("series"),
        "deterministic": result.deterministic,
    }


def _finite(value: float) -> float | str:
    return value if abs(value) < float("inf") else str(value)


def block_ratios(blocks: Iterable[Mapping[str, float | None]], above: str, below: Sequence[str]) -> list[float]:
    """Time of `above` over the least of `below`, per process that measured both; blocks: times by implementation."""
    found = []
    for times in blocks:
        over, least = times.get(above), min((time for name in below if (time := times.get(name))), default=None)
        if over and least:
            found.append(over / least)
    return found


def is_coarse(time_ns: float | None, device: str) -> bool:
    """Whether a cold time is mostly launch and event overhead."""
    return time_ns is not None and time_ns < COARSE_NS and device != "cpu"


@dataclass(frozen=True)
class Row:
    """A case on a device: results by implementation, each merged over all its processes.

    blocks: results of each process, by implementation that is ok in all of its own processes. Ratios are medians
    over the processes that measured both, so that both were measured within the same minutes.
    """

    op: str
    case: str
    case_id: str
    dtype: str
    device: str
    results: Mapping[str, Result]
    blocks: Sequence[Mapping[str, Measurement]]

    def median_ns(self, implementation: str) -> float | None:
        """Median time of an implementation that is ok; None otherwise."""
        measured = self._measured(implementation)
        return measured.median_ns if measured else None

    def hot_ns(self, implementation: str) -> float | None:
        """Time per call in a graph of many, caches warm; None if not measured."""
        measured = self._measured(implementation)
        return _hot(measured) if measured else None

    def _measured(self, implementation: str) -> Measurement | None:
        result = self.results.get(implementation)
        return result.measurement if result is not None and result.status is Status.OK else None

    @property
    def best(self) -> Result | None:
        """The optimized result, else the baseline's, else the fastest."""
        known = self.results.get(OPTIMIZED) or self.results.get(BASELINE)
        times = {name: time for name in self.results if (time := self.median_ns(name)) is not None}
        return known or (self.results[min(times, key=times.__getitem__)] if times else None)

    @property
    def speedup(self) -> float | None:
        """Baseline time over optimized time."""
        return self._ratio(BASELINE, (OPTIMIZED,), _cold)

    @property
    def against_peer(self) -> float | None:
        """Optimized time over the time of the fastest peer: below 1 is faster."""
        return self._ratio(OPTIMIZED, PEERS, _cold)

    @property
    def hot_against_peer(self) -> float | None:
        """Optimized hot time over the least hot time of the peers."""
        return self._ratio(OPTIMIZED, PEERS, _hot)

    def _ratio(self, above: str, below: Sequence[str], time: Callable[[Measurement], float | None]) -> float | None:
        found = self._ratios(above, below, time)
        return median(found) if found else None

    def _ratios(self, above: str, below: Sequence[str], time: Callable[[Measurement], float | None]) -> list[float]:
        taken = [{name: time(measured) for name, measured in block.items()} for block in self.blocks]
        return block_ratios(taken, above, below)

    @property
    def decides(self) -> str:
        """Which ratio decides: `hot` below 10 µs on a GPU, else `cold`."""
        coarse = is_coarse(self.median_ns(OPTIMIZED), self.device)
        return "hot" if coarse and self.hot_against_peer is not None else "cold"

    @property
    def deciding(self) -> float | None:
        """The ratio that decides."""
        found = self.deciding_by_block
        return median(found) if found else None

    @property
    def deciding_by_block(self) -> list[float]:
        """The ratio that decides, in each process."""
        return self._ratios(OPTIMIZED, PEERS, _hot if self.decides == "hot" else _cold)

    @property
    def standing(self) -> str:
        """`faster` than the fastest peer, `slower`, or `within noise` of the limit."""
        if self.deciding is None or self.deciding > ALLOWED[self.decides] * NOISE:
            return "slower"
        return "faster" if self.deciding <= ALLOWED[self.decides] else "within noise"


def _cold(measured: Measurement) -> float | None:
    """Median time; None without samples, and for one of 0, which no rate or ratio can be made of."""
    return (measured.median_ns or None) if measured.samples_ns else None


def _hot(measured: Measurement) -> float | None:
    footprint = measured.footprint
    return None if footprint is not None and footprint.launches == 0 else measured.hot_ns


def rows(results: Iterable[Result]) -> list[Row]:
    """A row per case and device, in the order of the results."""
    found: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        by_name = found.setdefault((result.trial.case.id, result.trial.device), {})
        by_name.setdefault(result.trial.implementation, []).append(result)
    return [_row(by_name) for by_name in found.values()]


def _as_one(blocks: Sequence[Result]) -> Result:
    """The first result that is not ok; else one whose samples are the medians of all processes."""
    bad = next((block for block in blocks if block.status is not Status.OK), None)
    taken = [block.measurement for block in blocks if block.measurement is not None]
    if bad is not None or len(taken) < 2:
        return bad or blocks[0]
    hot = [one.hot_ns for one in taken if one.hot_ns is not None]
    medians = tuple(one.median_ns for one in taken)
    measurement = replace(taken[0], samples_ns=medians, cpu_ns=(), clock_mhz=(), hot_ns=median(hot) if hot else None)
    return replace(blocks[0], measurement=measurement)


def _row(by_name: Mapping[str, Sequence[Result]]) -> Row:
    results = {name: _as_one(blocks) for name, blocks in by_name.items()}
    trial = next(iter(results.values())).trial
    measured: dict[int, dict[str, Measurement]] = {}
    for name, blocks in by_name.items():
        for block in blocks if results[name].status is Status.OK else ():
            if block.measurement is not None:
                measured.setdefault(block.block, {})[name] = block.measurement
    case = trial.case
    return Row(case.op, case.name, case.id, case.dtype, trial.device, results, list(measured.values()))


def sort_rows(found: list[Row], order: str) -> list[Row]:
    """Rows by `slowest` (slowest against the fastest peer first), `speedup` (least first) or `name`."""
    if order == "name":
        return sorted(found, key=lambda row: (row.op, row.case, row.device))
    if order == "slowest":
        return sorted(found, key=lambda row: -(row.deciding or 0.0))
    return sorted(found, key=lambda row: row.speedup or float("inf"))
