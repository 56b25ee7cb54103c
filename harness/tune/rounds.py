"""Rounds of the tuner: in one fresh process every case by every candidate, one after the other.

All candidates of a case are measured by the same process on the same device, so a round is never divided. Rounds may
run on several devices at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from opgauge.harness.result.record_json import from_json
from opgauge.harness.result.result import Measurement, Status
from opgauge.harness.worker import protocol

Json = Mapping[str, Any]


class Runner(Protocol):
    """A process that measures: `opgauge.harness.run.execute.LocalExecutor`."""

    def run_plain(self, trial: Json, *, block: int = 0, **more: Any) -> dict[str, Any]:
        """A trial and its result as plain JSON; `tuning`, `trusted`, `with_digest` among `more`."""

    def ask(self, request: protocol.ListTunables) -> Any:
        """The answer to a request: for the `parameters` of a trial."""


Start = Callable[[], AbstractContextManager[Runner]]


@dataclass(frozen=True)
class RoundOrder:
    """Instructions for one round.

    values: candidates in order, the default among them. trials: a case each, as plain JSON. chosen: values of other
    parameters. trusted: digests of outputs that were checked, by case and value. limit_s: seconds after which no
    further case is begun; None: no limit.
    """

    number: int
    parameter: str
    values: tuple[int, ...]
    default: int
    trials: tuple[Json, ...]
    chosen: Mapping[str, int]
    trusted: Mapping[tuple[str, int], Json]
    limit_s: float | None = None


@dataclass(frozen=True)
class RoundOutcome:
    """Times and failures of one round.

    times_ns: median by candidate and case id. out: candidates that failed, with the reason. dropped: cases on which the
    default failed, with the reason. late: cases for which there was no time. trusted: as of the order, new ones.
    """

    times_ns: dict[tuple[int, str], float] = field(default_factory=dict)
    out: dict[int, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    trusted: dict[tuple[str, int], Json] = field(default_factory=dict)


class TuningBench(Protocol):
    """Devices that measure rounds."""

    @property
    def devices(self) -> int:
        """Number of rounds that it measures at once."""

    def bind(self, trials: Sequence[Json]) -> list[dict[str, Any]]:
        """Names of the tunables that binding each trial reads, see `protocol.ListTunables`."""

    def measure(self, orders: Sequence[RoundOrder]) -> list[RoundOutcome]:
        """The outcome of each order."""


@dataclass(frozen=True)
class LocalTuningBench:
    """Measures rounds one after the other by processes of this machine; `start` starts one."""

    start: Start
    devices: int = 1

    def bind(self, trials: Sequence[Json]) -> list[dict[str, Any]]:
        """Bind all trials in one process."""
        with self.start() as runner:
            return [runner.ask(protocol.ListTunables(trial)) for trial in trials]

    def measure(self, orders: Sequence[RoundOrder]) -> list[RoundOutcome]:
        """Measure each order in a process of its own."""
        return [measure_round(self.start, order) for order in orders]


def measure_round(start: Start, order: RoundOrder) -> RoundOutcome:
    """Measure a round in a fresh process."""
    done, begun = RoundOutcome(), monotonic()
    with start() as runner:
        for trial in order.trials:
            if order.limit_s is not None and monotonic() - begun >= order.limit_s and done.times_ns:
                done.late.append(trial["case"]["id"])
                continue
            for value in order.values:
                if value not in done.out and trial["case"]["id"] not in done.dropped:
                    _measure(runner, order, done, trial, value)
    return done


def _measure(runner: Runner, order: RoundOrder, done: RoundOutcome, trial: Json, value: int) -> None:
    case = trial["case"]
    trusted = order.trusted.get((case["id"], value))
    tuning = {**order.chosen, order.parameter: value}
    found = runner.run_plain(trial, block=order.number, tuning=tuning, trusted=trusted, with_digest=trusted is None)
    status, extra = Status(found["status"]), found.get("extra", {})
    if status is not Status.OK:
        why = f"{status}: {found.get('reason', '')}".removesuffix(": ")
        if value == order.default:
            done.dropped[case["id"]] = why
        else:
            done.out[value] = f"{case['op']} · {case['name']} is {why}"
        return
    if "digest" in extra and found.get("check"):
        done.trusted[case["id"], value] = {"digest": extra["digest"], "check": found["check"]}
    done.times_ns[value, case["id"]] = from_json(Measurement, found["measurement"]).median_ns
