"""Trials of a stored run as one side of a comparison: medians and calibrations of processes, status, limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import median
from sys import intern

from opgauge.harness.judge.verdict import Metrics, Rule, Side
from opgauge.harness.result.result import Status
from opgauge.harness.store import listing
from opgauge.harness.store.listing import Judged
from opgauge.harness.store.queries import CaseInfo, share_of
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.level import GRAVE
from opgauge.web.profile import number
from opgauge.web.reader import Reader

MOST = 5000
"""Most results of a run that are compared."""
USUAL = Rule()
"""Rule of cases without a threshold of their own."""
_BAD = frozenset(map(str, GRAVE))
TrialKey = tuple[str, str, str]
"""Case id, implementation, device."""


@dataclass(slots=True)
class ComparedTrial:
    """A case by one implementation on one device of a run: medians and calibration of its processes, and its status.

    bytes, flops: its least work. written_share: part of the bytes that is written; None: unknown.
    """

    case: CaseInfo
    rule: Rule
    device: str
    bytes: int
    flops: int
    written_share: float | None
    times: tuple[float, ...]
    calibrations: tuple[float, ...]
    side: Side

    @property
    def median_ns(self) -> float | None:
        """Median of its processes; None without a time."""
        times = self.times
        return times[0] if len(times) == 1 else median(times) if times else None


def read_trials(reader: Reader, run: RunInfo) -> dict[TrialKey, ComparedTrial]:
    """Trials of a run, read once for all comparisons, as reading dominates their time."""
    judged = listing.list_judged(reader.engine, run.key, MOST)
    infos = reader.cases({one.case_key for one in judged})
    rules = {key: _rule_for(info) for key, info in infos.items()}
    found: dict[tuple[int, str, str], list[Judged]] = {}
    for one in judged:
        found.setdefault((one.case_key, one.implementation, one.device), []).append(one)
    return {
        _key(infos[key].case_id, implementation, device): _trial(infos[key], rules[key], blocks)
        for (key, implementation, device), blocks in found.items()
        if key in infos
    }


@lru_cache(16_384)
def _key(case_id: str, implementation: str, device: str) -> TrialKey:
    """The same object for all runs, which a cache has many of."""
    return case_id, implementation, device


def _trial(case: CaseInfo, rule: Rule, blocks: list[Judged]) -> ComparedTrial:
    if len(blocks) > 1:
        blocks = sorted(blocks, key=lambda one: one.block)
    first = blocks[0]
    return ComparedTrial(
        case,
        rule,
        intern(first.device),
        first.bytes,
        first.flops,
        share_of(first.written_share),
        tuple([one.median_ns for one in blocks if one.median_ns]),
        _calibrations(blocks),
        _side(blocks),
    )


def _rule_for(case: CaseInfo) -> Rule:
    gate = case.data.get("gate")
    threshold = gate.get("threshold") if isinstance(gate, Mapping) else None
    if not isinstance(threshold, int | float) or not 0 < threshold < 1:
        return USUAL
    return _rule_of(float(threshold))


@lru_cache(4096)
def _rule_of(threshold: float) -> Rule:
    return Rule(threshold=threshold, same_within=threshold)


def _side(blocks: list[Judged]) -> Side:
    worst = next((one for one in blocks if one.status in _BAD), blocks[0]) if len(blocks) > 1 else blocks[0]
    return _side_of(worst.status, worst.reason, blocks[0].peak, blocks[0].footprint)


@lru_cache(4096)
def _side_of(status: str, reason: str, peak: str | int | None, footprint: str | None) -> Side:
    """A side, cached as most results have the same."""
    return Side(Status(status), metrics=_metrics(peak, footprint), reason=reason)


def _metrics(peak: str | int | None, text: str | None) -> Metrics:
    """Metrics without noise, of one process."""
    found = json.loads(text) if text else None
    footprint = found if isinstance(found, Mapping) else {}
    names = footprint.get("kernels")
    return Metrics(
        launches=_count(footprint.get("launches")),
        kernels=tuple(str(name) for name in names) if isinstance(names, list) else None,
        allocations=_count(footprint.get("allocations")),
        peak_bytes=None if peak is None else int(peak),
        registers=_count(footprint.get("registers")),
        spills=_count(footprint.get("spill_bytes")),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _calibrations(blocks: list[Judged]) -> tuple[float, ...]:
    """Calibration levels of all processes; none if one has none."""
    read = [json.loads(one.calibration) for one in blocks if one.calibration]
    if not read:
        return ()
    found = [(number(one, "copy_ns"), number(one, "arithmetic_ns")) for one in read]
    levels = tuple(sqrt(copy * arithmetic) for copy, arithmetic in found if copy and arithmetic)
    return levels if len(levels) == len(blocks) else ()
