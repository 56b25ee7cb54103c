"""Exploration: draw cases, measure them, and reduce failing or slow ones to the smallest such case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from time import monotonic
from typing import Any

from opgauge.harness.case.case import Case
from opgauge.harness.explore.draw import CaseLimits, CaseSource, draw_case, fits
from opgauge.harness.explore.finding import Finding, cause_of, failures, judged, kind, same_fault, slowdown, smaller
from opgauge.harness.explore.shrink import shrink
from opgauge.harness.result.result import Result, Trial
from opgauge.harness.result.summary import OPTIMIZED, PEERS, Row, rows
from opgauge.harness.run.runner import plan
from opgauge.ops import Device, all_ops, kernels

SHRINKING_S = 20.0
"""Seconds of shrinking after which shrinking is limited to half of the time."""
MISSES = 3
"""Consecutive draws without a valid case after which an op is abandoned."""


Measure = Callable[[Sequence[Trial]], list[Result]]
"""Runs trials, stores their results, and returns them in order of the trials."""


@dataclass(frozen=True, slots=True)
class ExplorationPlan:
    """Plan of an exploration.

    seed: of all draws. cases: most cases to draw, None for no limit. end: by `time.monotonic`, seconds. device:
    such as `cuda:0`. threshold: ratio above which a case is a finding. steps: most cases measured to shrink one.
    only_wrong: check only, without measuring. batch: cases measured before findings are shrunk. limits: of a case.
    at_once: findings that are shrunk at the same time; `measure` is then called from as many threads.
    """

    seed: int
    device: str
    end: float
    cases: int | None = None
    threshold: float = 1.10
    steps: int = 16
    only_wrong: bool = False
    batch: int = 1
    limits: CaseLimits = field(default_factory=CaseLimits)
    at_once: int = 1


@dataclass(slots=True)
class Exploration:
    """Rows of the drawn cases, number of cases measured to shrink, findings, ops without a valid draw.

    further: number of cases, by cause, that are wrong as a finding is.
    """

    drawn: int = 0
    rows: list[Row] = field(default_factory=list)
    shrinking: int = 0
    findings: list[Finding] = field(default_factory=list)
    undrawn: list[str] = field(default_factory=list)
    further: Counter[tuple[str, ...]] = field(default_factory=Counter)


def sources(known: Sequence[Case], ops: Sequence[str] | None, device: str) -> list[CaseSource]:
    """A source per op that has an optimized kernel, or a baseline, on the device."""
    backend = Device.parse(device).backend
    found = []
    for op in all_ops():
        if ops and op.name not in ops:
            continue
        keys = [item.key for item in kernels(op=op.name, backend=backend)]
        own = {key.dtype for key in keys if key.implementation == OPTIMIZED} or {key.dtype for key in keys}
        dtypes = [dtype for dtype in op.dtypes if dtype in own]
        if dtypes:
            found.append(CaseSource(op, [case for case in known if case.op == op.name], dtypes))
    return found


def explore(
    wanted: ExplorationPlan, drawn_from: Sequence[CaseSource], measure: Measure, tell: Callable[[str], Any]
) -> Exploration:
    """Draw until there are enough cases or the time is over; at most half of the time is spent on shrinking.

    The same plan draws the same cases: if `measure` knows results of an earlier part, the exploration resumes
    there.
    """
    found, shrinking = Exploration(), 0.0
    begun = monotonic()
    draws = _draws(wanted, drawn_from, found)
    while monotonic() < wanted.end and (wanted.cases is None or found.drawn < wanted.cases):
        left = wanted.batch if wanted.cases is None else min(wanted.batch, wanted.cases - found.drawn)
        cases = list(islice(draws, left))
        if not cases:
            break
        found.drawn += len(cases)
        measured = _rows(cases, wanted, measure)
        found.rows += measured
        drawn = sorted((one for row in measured for one in _findings(row, wanted)), key=lambda one: -one.weight)
        while some := _next(drawn, wanted.at_once, found):
            now = monotonic()
            if now < wanted.end and shrinking <= max((now - begun) / 2, SHRINKING_S):
                some = _shrink_all(some, wanted, measure, found)
                shrinking += monotonic() - now
            found.findings += some
            for finding in some:
                tell(_line(finding))
    return found


def _next(drawn: list[Finding], most: int, found: Exploration) -> list[Finding]:
    """Remove from `drawn` the next findings to shrink at once; wrong cases of a known cause are counted and removed."""
    some, later = list[Finding](), list[Finding]()
    for one in drawn:
        known = next((told for told in found.findings if same_fault(told, one)), None)
        if known is not None:
            found.further[known.cause] += 1
        elif len(some) < most and not any(same_fault(other, one) or same_fault(one, other) for other in some):
            some.append(one)
        else:
            later.append(one)
    drawn[:] = later
    return some


def _draws(wanted: ExplorationPlan, drawn_from: Sequence[CaseSource], found: Exploration) -> Iterator[Case]:
    """Valid cases, op after op in rotation; an op without valid draws is abandoned."""
    misses = dict.fromkeys((source.op.name for source in drawn_from), 0)
    seen: set[str] = set()
    for index in count():
        there = [source for source in drawn_from if misses[source.op.name] < MISSES]
        if not there:
            return
        for source in there:
            case = draw_case(source, wanted.seed, index, wanted.limits)
            if case is None or case.id in seen:
                misses[source.op.name] += 1
                if misses[source.op.name] == MISSES and case is None:
                    found.undrawn.append(source.op.name)
                continue
            misses[source.op.name] = 0
            seen.add(case.id)
            yield case


def _rows(cases: Sequence[Case], wanted: ExplorationPlan, measure: Measure) -> list[Row]:
    trials = plan(cases, devices=[wanted.device])
    if wanted.only_wrong:
        trials = [trial for trial in trials if trial.implementation not in PEERS]
    return rows(measure(trials))


def _findings(row: Row, wanted: ExplorationPlan) -> Iterator[Finding]:
    """One for each implementation that is invalid, and one if the fastest of the others is slow."""
    reasons = failures(row)
    for name, reason in reasons.items():
        result = row.results[name]
        case = result.trial.case
        yield Finding(case, case, row.device, name, cause_of(result, case), reason=reason)
    slow = None if wanted.only_wrong else slowdown(row)
    if slow is not None and slow.ratio > wanted.threshold:
        name = min(filter(row.median_ns, judged(row)), key=lambda one: row.median_ns(one) or 0.0)
        result = row.results[name]
        yield Finding(result.trial.case, result.trial.case, row.device, name, cause_of(result, result.trial.case), slow)


def _shrink_all(
    some: Sequence[Finding], wanted: ExplorationPlan, measure: Measure, found: Exploration
) -> list[Finding]:
    if len(some) == 1:
        # in this thread: a local worker ends with the thread that started it
        done = [_shrunk(some[0], wanted, measure)]
    else:
        with ThreadPoolExecutor(len(some)) as threads:
            done = list(threads.map(lambda finding: _shrunk(finding, wanted, measure), some))
    found.shrinking += sum(measured for _, measured in done)
    return [finding for finding, _ in done]


def _shrunk(finding: Finding, wanted: ExplorationPlan, measure: Measure) -> tuple[Finding, int]:
    """The finding by the smallest case that shows at least half of its slowdown, or that is wrong too; cases tried."""
    least = wanted.threshold
    if finding.slowdown is not None:
        least = max(least, 1 + (finding.slowdown.ratio - 1) / 2)
    best: dict[str, Finding] = {}
    tried = 0

    def shows(case: Case) -> bool:
        if monotonic() > wanted.end or not fits(case, wanted.limits):
            return False
        measured = _rows([case], wanted, measure)
        nonlocal tried
        tried += len(measured)
        for row in measured:
            reason, slow = failures(row).get(finding.implementation, ""), slowdown(row)
            still = not reason and slow is not None and slow.ratio >= least
            if finding.reason:  # wrong values must not become another fault, such as an error about shapes
                still = kind(reason) == kind(finding.reason)
            if still:
                best[case.id] = smaller(finding, row.results[finding.implementation], None if reason else slow, reason)
                return True
        return False

    case = shrink(finding.case, shows, wanted.steps)
    return best.get(case.id, finding), tried


def _line(finding: Finding) -> str:
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in finding.case.shapes.items())
    what = finding.reason or f"{finding.slowdown.ratio:.3g} times {finding.slowdown.rival}" if finding.slowdown else ""
    return f"{finding.case.op} {finding.case.dtype} {shapes}: {finding.reason or what}"
