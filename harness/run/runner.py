"""The runner: plans trials and runs them, cases → trials → results, each handed out as soon as there is one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Result, Trial
from opgauge.harness.run.execute import Ask, Executor, ask_nothing
from opgauge.ops import Device, kernels

Finished = tuple[str, str, str]
"""Case id, implementation and device of a trial with a result."""


def plan(
    cases: Iterable[Case],
    *,
    implementations: Collection[str] | None = None,
    devices: Iterable[str] = ("cpu",),
    finished: Collection[Finished] = frozenset(),
    cpu_fallback: bool = False,
) -> list[Trial]:
    """Every case by every implementation registered for its op, dtype and the device's backend.

    Device by device and case by case, the baseline first, so that all implementations of a case follow each
    other and share its reference. What is not registered is left out without a word: `opgauge list` says what
    there is. `implementations` keeps those named, without it all but experimental ones; `finished` leaves
    out what has its result already; with `cpu_fallback` an implementation that only the CPU has is planned
    for other devices too. Raises BackendError for a device that cannot be.
    """
    done = set(finished)
    trials = []
    items = list(cases)
    for text in devices:
        device = Device.parse(text)
        for case in items:
            for name in _implementations(case, device.backend, implementations, cpu_fallback=cpu_fallback):
                trial = Trial(case, name, device.backend, str(device))
                if (case.id, name, str(device)) not in done:
                    trials.append(trial)
    return trials


def run(trials: Iterable[Trial], executor: Executor, *, block: int = 0, ask: Ask = ask_nothing) -> Iterator[Result]:
    """Run `trials`; a result is handed out, for the caller to keep, before the next trial begins.

    ask: what is asked of each beyond being run (see LocalExecutor.run_plain).
    """
    yield from executor.run(trials, block=block, ask=ask)


def _implementations(case: Case, backend: str, named: Collection[str] | None, *, cpu_fallback: bool) -> list[str]:
    backends = {backend, "cpu"} if cpu_fallback else {backend}
    there = [item for item in kernels(op=case.op, dtype=case.dtype) if item.key.backend in backends]
    names = {
        item.key.implementation
        for item in there
        if (not item.experimental if named is None else item.key.implementation in named)
    }
    return sorted(names, key=lambda name: (name != "baseline", name))
