"""Verdict on whether B is slower than A, with its reason, from paired process medians; pure, and never stored.

`compare_run` judges all cases of a run together, so that of the cases called slower (or faster) at most the share
`FALSE_SHARE` is wrong in the long run. A ratio is time of B over time of A: above 1 is slower. See
`opgauge.harness.judge.estimate` for the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from opgauge.harness.judge.estimate import LEAST_PAIRS, estimate, modes_at, reject, split_modes
from opgauge.harness.judge.verdict import Change, Comparison, Evidence, Kind, Metrics, Reason, Rule, Side, Verdict
from opgauge.harness.result.result import Status

FAILED_BEFORE = "the base fails too"
"""Begins the detail of what was broken in the base as well."""
FALSE_SHARE = 0.01
"""Largest expected share of false alarms among the alarms of a run (Benjamini and Hochberg's q)."""
CALIBRATION_SHIFT = 0.01
"""The calibration workload has moved when its interval lies beyond this, as a log ratio."""
CALIBRATION_SWAY = 4.0
"""Largest change of a case that the host can explain, as a multiple of the change of the calibration workload."""
COUNT_NOISE = 0.001
"""Relative difference of instruction counts of the same code, from the interpreter's start."""
SUSPICION = 0.05
"""Probability of a change beyond the threshold from which `same` is not claimed."""

_FAILURES = {
    Status.WRONG: Reason.WRONG,
    Status.ERROR: Reason.ERROR,
    Status.TIMEOUT: Reason.TIMEOUT,
    Status.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
}
_COSTS = {
    "launches": Reason.LAUNCHES,
    "kernels": Reason.KERNELS,
    "allocations": Reason.ALLOCATIONS,
    "peak_bytes": Reason.PEAK_MEMORY,
    "registers": Reason.REGISTERS,
    "spills": Reason.SPILLS,
    "instructions": Reason.INSTRUCTIONS,
}
COUNTED = frozenset(_COSTS.values())
"""Reasons of `slower` that are counts, whatever the time is."""


@dataclass(slots=True)
class _Entry:
    """A case and its state while it is judged; `found` is set as soon as times cannot change it."""

    evidence: Evidence
    rule: Rule
    pairs: tuple[tuple[float, float], ...]
    found: Comparison


@dataclass(frozen=True, slots=True)
class _Times:
    """Estimates from the times of one case, as log ratios."""

    low: float
    high: float
    null: float
    p_slower: float
    p_faster: float
    detectable: float
    left_out: int
    modes_ns: tuple[tuple[float, ...], ...]
    proven_slower: bool = False
    proven_faster: bool = False


def is_suspect(found: Comparison | _Times) -> bool:
    """Whether a change beyond the threshold is probable enough that `same` is not claimed."""
    known = [one for one in (found.p_slower, found.p_faster) if one is not None]
    return bool(known) and min(known) < SUSPICION


def compare(evidence: Evidence, rule: Rule | None = None) -> Comparison:
    """The verdict on a single case."""
    return compare_run([evidence], [rule or Rule()])[0]


def compare_run(evidence: Sequence[Evidence], rules: Sequence[Rule] | None = None) -> tuple[Comparison, ...]:
    """A verdict per case, in order, with the false discovery rate controlled over all of them.

    rules: one per case; None: the default rule for each.
    """
    asked = rules if rules is not None else [Rule()] * len(evidence)
    entries = [_enter(one, rule) for one, rule in zip(evidence, asked, strict=True)]
    judged = {index: entry for index, entry in enumerate(entries) if _is_timed(entry)}
    for index, times in _times_of(judged).items():
        entries[index].found = _judge(entries[index], times)
    return tuple(entry.found for entry in entries)


def _is_timed(entry: _Entry) -> bool:
    return entry.found.kind is Kind.COMPARED and entry.found.verdict is not Verdict.BROKEN and len(entry.pairs) > 1


def _enter(evidence: Evidence, rule: Rule) -> _Entry:
    pairs = tuple(pair for pair in evidence.pairs if all(math.isfinite(time) and time > 0 for time in pair))
    head = [pair[1] for pair in pairs]
    changes = _changes(evidence.base, evidence.head)
    kind, verdict, reason, detail = _standing(evidence, rule, head, _costs(changes, rule))
    ratio = math.exp(median(math.log(b / a) for a, b in pairs)) if pairs else None
    found = Comparison(
        subject=evidence.subject,
        kind=kind,
        verdict=verdict,
        reason=reason,
        detail=detail,
        pairs=len(pairs),
        ratio=ratio if kind is Kind.COMPARED else None,
        changes=changes,
    )
    return _Entry(evidence, rule, pairs, found)


_Standing = tuple[Kind, Verdict | None, Reason, str]


def _standing(evidence: Evidence, rule: Rule, head_ns: Sequence[float], costs: Sequence[Reason]) -> _Standing:
    """Kind, verdict, reason and detail before times are compared."""
    base, head = evidence.base, evidence.head
    if head is None or head.status is Status.UNSUPPORTED:
        return _absent(base, head)
    failure = _failure(head)
    if failure is not None:
        before = f"{FAILED_BEFORE}; " if base is not None and _failure(base) is not None else ""
        return Kind.COMPARED, Verdict.BROKEN, failure, f"{before}{head.reason}"
    excess = _implausible(evidence, head, rule, head_ns)
    if excess:
        return Kind.COMPARED, Verdict.BROKEN, Reason.IMPLAUSIBLE, excess
    return _facing(base, costs, timed=bool(head_ns))


def _absent(base: Side | None, head: Side | None) -> _Standing:
    """Outcome if one side is missing; a missing head never passes."""
    if base is not None and base.status is Status.OK and head is not None:
        return Kind.COMPARED, Verdict.BROKEN, Reason.GONE, head.reason
    if head is not None:
        return Kind.UNSUPPORTED, None, Reason.UNSUPPORTED, head.reason
    if base is not None:
        return Kind.REMOVED, None, Reason.NO_HEAD, ""
    return Kind.UNMEASURED, None, Reason.NO_DATA, ""


def _implausible(evidence: Evidence, head: Side, rule: Rule, head_ns: Sequence[float]) -> str:
    """How the head is faster than its device allows; empty if it is not."""
    share = head.ceiling_share
    if share is not None and share > rule.max_ceiling_share:
        return f"{share:.3g} times what the device reaches"
    floor_ns = evidence.floor_ns
    if floor_ns is not None and head_ns and min(head_ns) < floor_ns / rule.max_ceiling_share:
        return f"{min(head_ns):.4g} ns; the device's ceiling allows {floor_ns:.4g} ns"
    return ""


def _facing(base: Side | None, costs: Sequence[Reason], *, timed: bool) -> _Standing:
    """Outcome of a valid head, by the state of the base."""
    if base is None or base.status is Status.UNSUPPORTED:
        return Kind.NEW, None, Reason.NO_BASE, ""
    if _failure(base) is not None:
        return Kind.FIXED, None, Reason.BASE_FAILED, base.reason
    if costs:
        return Kind.COMPARED, Verdict.SLOWER, costs[0], ""
    if not timed:
        return Kind.UNMEASURED, None, Reason.NO_DATA, ""
    return Kind.COMPARED, Verdict.UNDECIDED, Reason.TOO_FEW, ""


def _failure(side: Side) -> Reason | None:
    if side.check is not None and not side.check.ok and side.status is Status.OK:
        return Reason.WRONG
    return _FAILURES.get(side.status)


def _changes(base: Side | None, head: Side | None) -> tuple[Change, ...]:
    if base is None or head is None or base.metrics == head.metrics:
        return ()
    return tuple(_metric_changes(base.metrics, head.metrics))


def _metric_changes(base: Metrics, head: Metrics) -> Iterable[Change]:
    for name in _COSTS:
        before, after = getattr(base, name), getattr(head, name)
        if before is None or after is None or before == after:
            continue
        if name == "instructions" and abs(after - before) <= COUNT_NOISE * before:
            continue
        yield Change(name, before, after, worse=name == "kernels" or after > before)


def _times_of(entries: Mapping[int, _Entry]) -> dict[int, _Times]:
    """The times of each entry, estimated in batches with equally many pairs; the alarms are controlled over all."""
    sizes = {len(entry.pairs) for entry in entries.values()}
    found: dict[int, _Times] = {}
    alpha = FALSE_SHARE / max(len(entries), 1)
    for size in sorted(sizes):
        batch = {index: entry for index, entry in entries.items() if len(entry.pairs) == size}
        found |= dict(zip(batch, _batch(list(batch.values()), alpha), strict=True))
    slower = reject([times.p_slower for times in found.values()], FALSE_SHARE)
    faster = reject([times.p_faster for times in found.values()], FALSE_SHARE)
    return {
        index: replace(
            times,
            proven_slower=bool(is_slower) and times.low > times.null,
            proven_faster=bool(is_faster) and times.high < -times.null,
        )
        for (index, times), is_slower, is_faster in zip(found.items(), slower, faster, strict=True)
    }


def _null(entry: _Entry) -> float:
    """The log ratio beyond which a change counts."""
    return math.log1p(max(entry.rule.threshold, entry.evidence.noise_floor))


def _batch(entries: Sequence[_Entry], alpha: float) -> list[_Times]:
    pairs = np.array([entry.pairs for entry in entries], np.float64)
    nulls = np.array([_null(entry) for entry in entries])
    ordered = np.sort(pairs, axis=1)
    places = np.stack([split_modes(np.log(ordered[:, :, side])) for side in (0, 1)], axis=1)
    made = estimate(np.log(pairs), has_modes=places.any(axis=1))
    low, high = made.interval()
    columns = (low, high, nulls, made.p_above(nulls), made.p_below(-nulls), made.detectable(nulls, alpha))
    found = []
    for index, (lower, upper, null, above, below, seen) in enumerate(np.stack(columns, axis=1).tolist()):
        modes = tuple(modes_at(ordered[index, :, side], int(places[index, side])) for side in (0, 1))
        left_out = pairs.shape[1] - int(made.kept[index])
        found.append(_Times(lower, upper, null, above, below, seen, left_out, modes))
    return found


def _judge(entry: _Entry, times: _Times) -> Comparison:
    shift = _calibration_shift(entry.evidence.calibration)
    verdict, reason = _with_threads(entry.evidence, *_verdict(entry, times, shift))
    return replace(
        entry.found,
        verdict=verdict,
        reason=reason,
        interval=(math.exp(times.low), math.exp(times.high)),
        detectable_change=math.expm1(times.detectable),
        p_slower=times.p_slower,
        p_faster=times.p_faster,
        left_out=times.left_out,
        base_modes_ns=times.modes_ns[0],
        head_modes_ns=times.modes_ns[1],
        host_moved=shift > 0,
        same_within=entry.rule.same_within,
    )


def _calibration_shift(calibration: Sequence[tuple[float, float]]) -> float:
    """Largest change of the calibration workload, as a log ratio; 0 if it did not move."""
    if len(calibration) < LEAST_PAIRS:
        return 0.0
    low, high = (float(end[0]) for end in estimate(np.log(np.array([calibration], np.float64))).interval())
    return max(-low, high) if low > CALIBRATION_SHIFT or high < -CALIBRATION_SHIFT else 0.0


def _verdict(entry: _Entry, times: _Times, calibration_shift: float) -> tuple[Verdict, Reason]:
    costs = _costs(entry.found.changes, entry.rule)
    if costs and not times.proven_faster:
        return Verdict.SLOWER, costs[0]
    if times.proven_slower or times.proven_faster:
        beyond = (times.low if times.proven_slower else -times.high) - times.null
        doubt = _doubt(entry, host_moved=beyond <= CALIBRATION_SWAY * calibration_shift)
        if doubt is not None:
            return Verdict.UNDECIDED, doubt
        return (Verdict.SLOWER if times.proven_slower else Verdict.FASTER), Reason.BEYOND
    same_within = math.log1p(entry.rule.same_within)
    inside = -same_within < times.low and times.high < same_within
    if inside and not is_suspect(times) and len(entry.pairs) >= LEAST_PAIRS:
        return Verdict.SAME, Reason.WITHIN
    return Verdict.UNDECIDED, _why_undecided(entry, times, same_within)


def _with_threads(evidence: Evidence, verdict: Verdict, reason: Reason) -> tuple[Verdict, Reason]:
    """The verdict after a coarse run with all threads, which overrides all but `slower`."""
    if verdict is Verdict.SLOWER or not evidence.slower_with_threads:
        return verdict, reason
    if evidence.crowded:
        return Verdict.UNDECIDED, Reason.CORES_BUSY
    return Verdict.SLOWER, Reason.THREADS


def _costs(changes: Sequence[Change], rule: Rule) -> list[Reason]:
    return [_COSTS[one.metric] for one in changes if one.worse and one.metric in rule.exact]


def _doubt(entry: _Entry, *, host_moved: bool) -> Reason | None:
    """Why an alarm is not raised although the interval supports it."""
    if len(entry.pairs) < LEAST_PAIRS:
        return Reason.TOO_FEW
    if host_moved:
        return Reason.HOST_MOVED
    return Reason.UNCONFIRMED if len(entry.pairs) < entry.rule.alarm_pairs else None


def _why_undecided(entry: _Entry, times: _Times, same_within: float) -> Reason:
    if len(entry.pairs) < LEAST_PAIRS:
        return Reason.CORES_BUSY if entry.evidence.disturbed else Reason.TOO_FEW
    if max(len(modes) for modes in times.modes_ns) > 1:
        return Reason.BIMODAL
    return Reason.BORDERLINE if times.high - times.low < 2 * same_within else Reason.TOO_WIDE
