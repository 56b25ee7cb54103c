"""The gate: one outcome with an exit code from all comparisons; and which cases need more pairs.

A case that was not measured never passes, and an undecided case is a state of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum

from opgauge.harness.case.case import GatePolicy
from opgauge.harness.gate.policy import Policy
from opgauge.harness.gate.waiver import Waiver, WaiverReview, review
from opgauge.harness.judge.compare import is_suspect
from opgauge.harness.judge.verdict import EXTENDABLE, Comparison, Kind, Reason, Subject, Verdict


class ExitCode(IntEnum):
    """Exit code of the command."""

    PASSED = 0
    SLOWER = 1
    USAGE = 2
    BROKEN = 3
    UNDECIDED = 4
    NOTHING = 5


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a case within one run; None if unknown.

    speedup: baseline time over optimized time. ceiling_share: of the ceiling, 0 to 1. launches: kernel launches of
    one call.
    """

    subject: Subject
    speedup: float | None = None
    ceiling_share: float | None = None
    launches: int | None = None


@dataclass(frozen=True, slots=True)
class Breach:
    """A demand that is not met, or, if `found` is None, cannot be judged."""

    subject: Subject
    demand: str
    asked: float
    found: float | None

    def __str__(self) -> str:
        found = "not known" if self.found is None else f"{self.found:.4g}"
        return f"{self.subject}: {self.demand} {self.asked:.4g}: {found}"


def check_demands(facts: Facts, asked: GatePolicy) -> tuple[Breach, ...]:
    """The demands within one run that are not met: min_speedup, min_ceiling, max_launches."""
    demands = (
        ("min_speedup", asked.min_speedup, facts.speedup),
        ("min_ceiling", asked.min_ceiling, facts.ceiling_share),
        ("max_launches", asked.max_launches, facts.launches),
    )
    return tuple(
        Breach(facts.subject, name, limit, found)
        for name, limit, found in demands
        if limit is not None and (found is None or not _meets(name, limit, found))
    )


def _meets(demand: str, limit: float, found: float) -> bool:
    return found <= limit if demand.startswith("max_") else found >= limit


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """Outcome of the gate.

    code: see ExitCode; 1 is also a demand of the policy that is not met. counts: cases by verdict, or by kind
    without one. failures: failing cases that no waiver covers. excused: failing cases with their waiver. waivers:
    state of each waiver.
    """

    code: ExitCode
    counts: Mapping[str, int]
    failures: tuple[Comparison, ...] = ()
    breaches: tuple[Breach, ...] = ()
    excused: tuple[tuple[Comparison, Waiver], ...] = ()
    waivers: tuple[WaiverReview, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything was measured, decided and passed."""
        return self.code is ExitCode.PASSED


def judge(
    found: Sequence[Comparison],
    policy: Policy,
    *,
    today: date,
    breaches: Sequence[Breach] = (),
    waivers: Sequence[Waiver] = (),
) -> GateOutcome:
    """The outcome of a run of comparisons."""
    failing = [one for one in found if _word(one) in policy.fail or one.kind is Kind.UNMEASURED]
    waived = [next((waiver for waiver in waivers if waiver.waives(one, today)), None) for one in failing]
    failures = tuple(one for one, waiver in zip(failing, waived, strict=True) if waiver is None)
    return GateOutcome(
        code=_code(found, failures, breaches),
        counts=Counter(_word(one) for one in found),
        failures=failures,
        breaches=tuple(breaches),
        excused=tuple((one, waiver) for one, waiver in zip(failing, waived, strict=True) if waiver is not None),
        waivers=review(waivers, found, today),
    )


def _word(found: Comparison) -> str:
    return str(found.verdict or found.kind)


def _code(found: Sequence[Comparison], failures: Iterable[Comparison], breaches: Iterable[Breach]) -> ExitCode:
    """The gravest code that applies: broken, slower, nothing measured, undecided.

    New cases alone pass, for their results are right. Beside removed ones, with nothing compared, they may be the same
    kernels under other names, which nothing compares.
    """
    kinds = {one.kind for one in found}
    is_replaced = Kind.REMOVED in kinds and not kinds & {Kind.COMPARED, Kind.FIXED}
    words = {_word(one) for one in failures}
    known = {breach.found is not None for breach in breaches}
    if Verdict.BROKEN in words:
        return ExitCode.BROKEN
    if words & {Verdict.SLOWER, Kind.NEW, Kind.REMOVED} or True in known:
        return ExitCode.SLOWER
    if is_replaced or not any(one.is_measured for one in found):
        return ExitCode.NOTHING
    return ExitCode.UNDECIDED if words or False in known else ExitCode.PASSED


MOST, EXTRA = 10, 6
"""Most pairs of an undecided case, and further ones of a probable change."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Numbers of pairs: `start` for all, then `step` more for the undecided, up to `most`.

    start: 0: the default of the method. A step is two pairs, one in each order of the sides. extra: further pairs,
    taken together, where a change beyond the threshold is probable and not proven by the others.
    """

    start: int = 0
    step: int = 2
    most: int = MOST
    extra: int = EXTRA

    @property
    def total(self) -> int:
        """Most pairs of any case."""
        return self.most + self.extra

    @classmethod
    def of(cls, start: int | None, most: int) -> Schedule:
        """The schedule with these numbers; extra pairs only where `most` is not fewer than usual."""
        return cls(start=min(start or 0, most), most=most, extra=EXTRA if most >= MOST else 0)


@dataclass(frozen=True, slots=True)
class Spending:
    """Seconds per side that a case has taken so far, and may take; None: no limit."""

    spent_s: float = 0.0
    budget_s: float | None = None


FREE = Spending()
"""Spending without a limit."""


def more_pairs(
    found: Iterable[Comparison], spending: Mapping[Subject, Spending], schedule: Schedule | None = None
) -> dict[Subject, int]:
    """Numbers of further pairs for the undecided cases; cases that are decided or out of budget get none.

    A change that lacks only its confirmation gets all remaining pairs, and one that is probable after those the extra
    ones.
    """
    plan = schedule or Schedule()
    wanted: dict[Subject, int] = {}
    for one in found:
        left = plan.most - one.pairs
        if left <= 0 and is_suspect(one):
            left = plan.total - one.pairs
        if left <= 0 or not _is_open(one):
            continue
        takes_all = one.reason is Reason.UNCONFIRMED or one.pairs >= plan.most
        count = left if takes_all else min(plan.step, left)
        affordable = _affordable(one.pairs, count, spending.get(one.subject, FREE))
        if affordable:
            wanted[one.subject] = affordable
    return wanted


def _is_open(found: Comparison) -> bool:
    """Whether a case is undecided for lack of pairs; or has higher costs, but may be faster for it."""
    if found.verdict is Verdict.UNDECIDED:
        return found.reason in EXTENDABLE
    is_cost = found.verdict is Verdict.SLOWER and found.reason is not Reason.BEYOND
    return is_cost and found.interval is not None and found.interval[0] < 1 and (found.ratio or 1) < 1


def _affordable(pairs: int, count: int, spending: Spending) -> int:
    """The largest even part of `count` pairs that the budget allows, at the average cost of the pairs so far."""
    if spending.budget_s is None or not pairs or not spending.spent_s:
        return count
    affordable = int((spending.budget_s - spending.spent_s) / (spending.spent_s / pairs))
    return count if affordable >= count else max(0, affordable // 2 * 2)
