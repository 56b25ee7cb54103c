"""Cases over a cluster: all implementations of a case are measured on one device, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opgauge.harness.case.casejson import case_to_json
from opgauge.harness.cluster import member
from opgauge.harness.cluster.tasks import Task, run_tasks
from opgauge.harness.measure import Limits
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Environment, Result, Status, Trial
from opgauge.harness.run.execute import Ask, ask_nothing
from opgauge.ops import find_op
from opgauge.ops._core.op import tensor_bytes

if TYPE_CHECKING:
    from distributed import Client

CASE_BYTES = 1 << 20
"""Weight that every case has besides its tensors: starting and checking take time whatever the size."""
FLOPS_PER_BYTE = 28
"""Flops of a reference that take as long as inputs, reference and bounds of a byte: 0.5 and 14 ns, by 216 cases."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A result, the environment and achieved peaks of the member that measured it, and its host."""

    result: Result
    environment: Environment
    ceilings: Ceilings | None
    host: str


def tasks_of(
    trials: Iterable[Trial],
    limits: Limits,
    *,
    timeout_s: float,
    block: int = 0,
    ceilings: bool = False,
    ask: Ask = ask_nothing,
) -> list[Task]:
    """A task per case and device, the heaviest first.

    block, ceilings: see `member.run_case`. ask: further request fields of each trial; a case all of whose outputs are
    trusted needs no reference.
    """
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.device, trial.case.id), []).append(trial)
    more = {"block": block, "ceilings": ceilings}
    found = [_task(group, limits, timeout_s, [ask(trial) for trial in group], more) for group in groups.values()]
    return sorted(found, key=lambda task: -task.weight)


def dispatch(
    client: Client,
    trials: Iterable[Trial],
    limits: Limits,
    *,
    timeout_s: float = 120.0,
    block: int = 0,
    references: bool = True,
    ceilings: bool = False,
    ask: Ask = ask_nothing,
    tell: Callable[[str], Any] = lambda _: None,
) -> Iterator[Measured]:
    """Results as they come; a case whose member is lost twice becomes an error of each trial.

    Raises what `run_tasks` raises.
    """
    tasks = tasks_of(trials, limits, timeout_s=timeout_s, block=block, ceilings=ceilings, ask=ask)
    for outcome in run_tasks(client, tasks, tell, references=references):
        if outcome.lost:
            yield from (_lost(from_json(Trial, trial), outcome.lost, block) for trial in outcome.task.arguments[0])
            continue
        found = outcome.value
        environment = from_json(Environment, found["environment"])
        reached = from_json(Ceilings, found["ceilings"]) if found["ceilings"] else None
        for result in found["results"]:
            yield Measured(from_json(Result, result), environment, reached, found["host"])


def _task(
    trials: Sequence[Trial],
    limits: Limits,
    timeout_s: float,
    fields: Sequence[Mapping[str, Any]],
    more: Mapping[str, Any],
) -> Task:
    first, is_known = trials[0], all(one.get("trusted") for one in fields)
    return Task(
        f"{first.case.op}/{first.case.name}",
        first.backend,
        member.run_case,
        ([to_json(trial) for trial in trials], to_json(limits), timeout_s),
        _weight(trials),
        None if is_known else case_to_json(first.case),
        {**more, "fields": fields},
    )


def _lost(trial: Trial, reason: str, block: int) -> Measured:
    work = find_op(trial.case.op).work(trial.case.resolved, trial.case.params)
    result = Result(trial, Status.ERROR, reason, bytes=work.bytes, flops=work.flops, block=block)
    return Measured(result, Environment({}, {}), None, "")


def _weight(trials: Sequence[Trial]) -> float:
    """Bytes of a case and those that its flops count for, times the number of implementations."""
    case = trials[0].case
    nbytes = tensor_bytes(case.resolved.inputs) + tensor_bytes(case.resolved.outputs) + CASE_BYTES
    return (nbytes + find_op(case.op).work(case.resolved, case.params).flops / FLOPS_PER_BYTE) * len(trials)
