"""The gate: from comparisons to one outcome with an exit code; and which cases need more pairs.

What was not measured is never a pass, and what could not be decided is not folded into one.
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
from opgauge.harness.judge.verdict import EXTENDABLE, Comparison, Kind, Reason, Subject, Verdict


class ExitCode(IntEnum):
    """What the command ends with."""

    PASSED = 0
    SLOWER = 1
    USAGE = 2
    BROKEN = 3
    UNDECIDED = 4
    NOTHING = 5


@dataclass(frozen=True, slots=True)
class Facts:
    """What one run says of a case; None where not known.

    speedup: baseline time over optimized time. ceiling_share: of the measured ceiling, 0 to
    1. launches: kernel launches of one call.
    """

    subject: Subject
    speedup: float | None = None
    ceiling_share: float | None = None
    launches: int | None = None


@dataclass(frozen=True, slots=True)
class Breach:
    """A demand that is not met, or, where `found` is None, cannot be judged."""

    subject: Subject
    demand: str
    asked: float
    found: float | None

    def __str__(self) -> str:
        found = "not known" if self.found is None else f"{self.found:.4g}"
        return f"{self.subject}: {self.demand} {self.asked:.4g}: {found}"


def check_demands(facts: Facts, asked: GatePolicy) -> tuple[Breach, ...]:
    """The demands inside one run that are not met: min_speedup, min_ceiling, max_launches."""
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
    """What the gate says.

    code: see ExitCode; 1 is also a demand of the policy that is not met. counts: cases by
    verdict, or by kind where there is none. failures: what the code rests on, not excused.
    excused: with the waiver that does it. waivers: how each stands.
    """

    code: ExitCode
    counts: Mapping[str, int]
    failures: tuple[Comparison, ...] = ()
    breaches: tuple[Breach, ...] = ()
    excused: tuple[tuple[Comparison, Waiver], ...] = ()
    waivers: tuple[WaiverReview, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything was measured, decided and found good."""
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
    excuses = [next((waiver for waiver in waivers if waiver.excuses(one, today)), None) for one in failing]
    failures = tuple(one for one, waiver in zip(failing, excuses, strict=True) if waiver is None)
    return GateOutcome(
        code=_code(found, failures, breaches),
        counts=Counter(_word(one) for one in found),
        failures=failures,
        breaches=tuple(breaches),
        excused=tuple((one, waiver) for one, waiver in zip(failing, excuses, strict=True) if waiver is not None),
        waivers=review(waivers, found, today),
    )


def _word(found: Comparison) -> str:
    return str(found.verdict or found.kind)


def _code(found: Sequence[Comparison], failures: Iterable[Comparison], breaches: Iterable[Breach]) -> ExitCode:
    """The gravest that applies: broken, slower, nothing measured, undecided."""
    words = {_word(one) for one in failures}
    known = {breach.found is not None for breach in breaches}
    if Verdict.BROKEN in words:
        return ExitCode.BROKEN
    if words & {Verdict.SLOWER, Kind.NEW, Kind.REMOVED} or True in known:
        return ExitCode.SLOWER
    if not any(one.is_measured for one in found):
        return ExitCode.NOTHING
    return ExitCode.UNDECIDED if words or False in known else ExitCode.PASSED


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many pairs: `start` for all, then `step` more for the undecided, `most` in all.

    start: 0: as the method of measuring has it. A step is two pairs, one in each order of the sides.
    """

    start: int = 0
    step: int = 2
    most: int = 10


@dataclass(frozen=True, slots=True)
class Spending:
    """Seconds per side that a case has cost so far, and that it may cost; None: no limit."""

    spent_s: float = 0.0
    budget_s: float | None = None


FREE = Spending()


def more_pairs(
    found: Iterable[Comparison], spending: Mapping[Subject, Spending], schedule: Schedule | None = None
) -> dict[Subject, int]:
    """How many more pairs each open case is to get now; cases that are decided or out of budget get none.

    A change that awaits only its confirmation gets all the pairs that are left.
    """
    plan = schedule or Schedule()
    wanted: dict[Subject, int] = {}
    for one in found:
        left = plan.most - one.pairs
        if left <= 0 or not _is_open(one):
            continue
        count = left if one.reason is Reason.UNCONFIRMED else min(plan.step, left)
        affordable = _affordable(one.pairs, count, spending.get(one.subject, FREE))
        if affordable:
            wanted[one.subject] = affordable
    return wanted


def _is_open(found: Comparison) -> bool:
    """Undecided for want of pairs; or costlier, but maybe faster for it."""
    if found.verdict is Verdict.UNDECIDED:
        return found.reason in EXTENDABLE
    is_cost = found.verdict is Verdict.SLOWER and found.reason is not Reason.BEYOND
    return is_cost and found.interval is not None and found.interval[0] < 1 and (found.ratio or 1) < 1


def _affordable(pairs: int, count: int, spending: Spending) -> int:
    """As many of `count` pairs, by twos, as the budget allows at the price of those so far."""
    if spending.budget_s is None or not pairs or not spending.spent_s:
        return count
    affordable = int((spending.budget_s - spending.spent_s) / (spending.spent_s / pairs))
    return count if affordable >= count else max(0, affordable // 2 * 2)
