"""Tuner: finds the fastest candidate of a launch parameter on a device, interleaved with the default.

A round is a fresh worker: every case by every candidate, one after the other, in the opposite order every other round,
so that a drift affects all alike. From a round a candidate gets one number, the mean log time over the cases; the
rounds are its pairs with the default, and `harness.judge.estimate` gives the interval of their ratio. Cases whose
kernels never read the parameter are excluded: each is bound once to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from time import monotonic
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.counting import counted
from opgauge.harness.judge.estimate import LEAST_PAIRS, LEVEL, Floats, estimate
from opgauge.harness.measure import Limits
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Trial
from opgauge.harness.result.summary import OPTIMIZED
from opgauge.harness.tune.rounds import Json, RoundOrder, RoundOutcome, TuningBench
from opgauge.ops import Device
from opgauge.ops._core.tuning import Parameter

TAGS = ("seed", "sites", "full")
"""Tags of the cases that are measured, in the order in which they get the budget."""
NEVER = "smoke"
"""Tag of the cases that are never measured, since they are small."""
LEAST_GAIN = 0.01
"""Gain beyond which the whole interval of a candidate must lie to replace the default."""
LEAST_ROUNDS, MOST_ROUNDS = LEAST_PAIRS + 2, 12
"""Rounds per parameter. Several candidates share one error probability, so the interval is wide with four."""
LIMITS = Limits(budget_s=0.05, min_samples=3, warmup_s=0.02)
"""Limits per candidate, case and round: further rounds tell more than further samples of one process."""
WIDE_BYTES, COPIES = 8, 6
"""Bytes of a float64, and float64 copies of a case's tensors: drawn, widened, reference, bound, compared."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate against the default: ratio of times over all cases, with its interval.

    worst: the case with the largest ratio, and that ratio. reason: why it is excluded; empty if it is not.
    """

    value: int
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    worst: tuple[str, float] | None = None
    reason: str = ""

    @property
    def is_better(self) -> bool:
        """Whether it is faster than the default by at least `LEAST_GAIN`, beyond noise."""
        return self.interval is not None and self.interval[1] < 1 - LEAST_GAIN


@dataclass(frozen=True, slots=True)
class TuningFinding:
    """Outcome for a parameter. notes: excluded cases, each with the reason. late: cases excluded for lack of time."""

    parameter: Parameter
    tried: tuple[Tried, ...] = ()
    cases: tuple[str, ...] = ()
    rounds: int = 0
    notes: tuple[str, ...] = ()
    late: int = 0

    @property
    def best(self) -> Tried | None:
        """The candidate that replaces the default, if any."""
        better = [one for one in self.tried if one.is_better]
        return min(better, key=lambda one: one.ratio or 1.0, default=None)

    @property
    def nearest(self) -> Tried | None:
        """The fastest candidate that was measured, better or not."""
        measured = [one for one in self.tried if one.ratio is not None]
        return min(measured, key=lambda one: one.ratio or 1.0, default=None)

    @property
    def chosen(self) -> int:
        """The value to use."""
        return self.parameter.default if self.best is None else self.best.value


def cases_of(parameter: Parameter, cases: Iterable[Case], memory_bytes: float) -> list[Case]:
    """The cases that may show the effect of `parameter`, published ones first: tagged, not small, fitting memory."""
    found = [
        case
        for case in cases
        if case.op in parameter.ops
        and set(TAGS) & set(case.tags)
        and NEVER not in case.tags
        and _bytes_needed(case) <= memory_bytes
    ]
    return sorted(found, key=lambda case: min(TAGS.index(tag) for tag in case.tags if tag in TAGS))


def _bytes_needed(case: Case) -> int:
    specs = (*case.resolved.inputs.values(), *case.resolved.outputs.values())
    return COPIES * WIDE_BYTES * sum(spec.size for spec in specs)


@dataclass(slots=True)
class _Sheet:
    """The times of one parameter, by candidate, round and case, and the candidates that are out of the question."""

    parameter: Parameter
    times_ns: dict[tuple[int, int, str], float] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    out: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    late: int = 0

    @property
    def values(self) -> list[int]:
        """The default, then the candidates that are not excluded."""
        rest = (value for value in self.parameter.candidates if value != self.parameter.default)
        return [self.parameter.default, *(value for value in rest if value not in self.out)]

    def drop(self, case: Case, why: str) -> None:
        """Exclude a case."""
        self.cases.pop(case.id, None)
        self.notes.append(f"{case.op} · {case.name}: {why}")

    def add(self, number: int, done: RoundOutcome) -> None:
        """Add a round. Rounds may have run at the same time, so a case may have been left out meanwhile."""
        self.times_ns |= {(value, number, case): time for (value, case), time in done.times_ns.items()}
        for value, why in done.out.items():
            self.out.setdefault(value, why)
        for case, why in done.dropped.items():
            if case in self.cases:
                self.drop(self.cases[case], why)
        for case in done.late:
            self.late += self.cases.pop(case, None) is not None

    def table(self, value: int, rounds: int) -> Floats:
        """Log times, (rounds, cases)."""
        return np.log([[self.times_ns[value, number, case] for case in self.cases] for number in range(rounds)])


class Tuner:
    """Finds values for one device, a parameter at a time; chosen values are in force for the parameters that follow."""

    def __init__(self, bench: TuningBench, device: str, *, budget_s: float, tell: Tell = lambda _: None) -> None:
        """budget_s: for each parameter; the first rounds are finished even where that takes longer."""
        self.chosen: dict[str, int] = {}
        self._bench = bench
        self._device = str(Device.parse(device))
        self._budget_s = budget_s
        self._tell = tell
        self._asked: dict[str, dict[str, Any]] = {}
        self._trusted: dict[tuple[str, int], Json] = {}

    def tune(self, parameter: Parameter, cases: Sequence[Case]) -> TuningFinding:
        """Measure every candidate of `parameter` on `cases`, and choose."""
        sheet, name = _Sheet(parameter), parameter.name
        self._trusted.clear()
        self._find_cases(sheet, cases)
        started, rounds = monotonic(), 0
        while sheet.cases and len(sheet.values) > 1 and rounds < MOST_ROUNDS:
            spent = monotonic() - started
            count = self._next_count(rounds)
            if rounds >= LEAST_ROUNDS and spent + count * spent / rounds > self._budget_s:
                break
            self._tell(f"{name}: round {rounds + 1}, {counted(len(sheet.cases), 'case')}")
            self._measure_rounds(sheet, range(rounds, rounds + count))
            rounds += count
        finding = judge(sheet, rounds) if sheet.cases else TuningFinding(parameter, notes=tuple(sheet.notes))
        self.chosen[name] = finding.chosen
        return finding

    def _next_count(self, rounds: int) -> int:
        """Rounds to measure at once; the first alone, because it decides how many cases there is time for."""
        if not rounds:
            return 1
        needed = LEAST_ROUNDS - rounds if rounds < LEAST_ROUNDS else MOST_ROUNDS - rounds
        return max(1, min(self._bench.devices, needed))

    def _find_cases(self, sheet: _Sheet, cases: Sequence[Case]) -> None:
        """Add the cases whose kernels read the parameter; the names that binding reads serve later parameters too."""
        unknown = [case for case in cases if case.id not in self._asked]
        if unknown:
            self._tell(f"{sheet.parameter.name}: binding {counted(len(unknown), 'case')}")
            answers = self._bench.bind([to_json(self._trial(case)) for case in unknown])
            self._asked |= {case.id: answer for case, answer in zip(unknown, answers, strict=True)}
        for case in cases:
            answer = self._asked[case.id]
            if "failed" in answer:
                sheet.notes.append(f"{case.op} · {case.name}: {answer['failed']}")
            elif sheet.parameter.name in answer["names"]:
                sheet.cases[case.id] = case

    def _trial(self, case: Case) -> Trial:
        return Trial(case, OPTIMIZED, Device.parse(self._device).backend, self._device)

    def _measure_rounds(self, sheet: _Sheet, numbers: range) -> None:
        values, limit_s = sheet.values, self._budget_s / LEAST_ROUNDS if numbers.start == 0 else None
        orders = [
            RoundOrder(
                number,
                sheet.parameter.name,
                tuple(values if number % 2 == 0 else values[::-1]),
                sheet.parameter.default,
                tuple(to_json(self._trial(case)) for case in sheet.cases.values()),
                dict(self.chosen),
                dict(self._trusted),
                limit_s,
            )
            for number in numbers
        ]
        for order, done in zip(orders, self._bench.measure(orders), strict=True):
            sheet.add(order.number, done)
            self._trusted |= done.trusted


def judge(sheet: _Sheet, rounds: int) -> TuningFinding:
    """Every candidate against the default; with fewer than `LEAST_ROUNDS` rounds none is better."""
    parameter = sheet.parameter
    values = sheet.values[1:]
    tried = [Tried(value, reason=reason) for value, reason in sheet.out.items()]
    if values and rounds >= LEAST_ROUNDS:
        default = sheet.table(parameter.default, rounds)
        tried += _compare(sheet, default, {value: sheet.table(value, rounds) for value in values})
    order = {value: place for place, value in enumerate(parameter.candidates)}
    return TuningFinding(
        parameter,
        tuple(sorted(tried, key=lambda one: order[one.value])),
        tuple(f"{case.op} · {case.name}" for case in sheet.cases.values()),
        rounds,
        tuple(sheet.notes),
        sheet.late,
    )


def _compare(sheet: _Sheet, default: Floats, tables: Mapping[int, Floats]) -> Iterator[Tried]:
    """Candidates against the default; they share the probability of a false choice."""
    logs = np.stack([np.stack((default.mean(axis=1), one.mean(axis=1)), axis=1) for one in tables.values()])
    made = estimate(logs)
    low, high = made.interval(1 - (1 - LEVEL) / len(tables))
    names = [f"{case.op} · {case.name}" for case in sheet.cases.values()]
    for index, (value, table) in enumerate(tables.items()):
        by_case = np.median(table - default, axis=0)
        place = int(by_case.argmax())
        worst = (names[place], exp(by_case[place]))
        interval = (exp(low[index]), exp(high[index]))
        yield Tried(value, exp(made.centre[index]), interval, worst)
