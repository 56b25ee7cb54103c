"""The runner: plans trials and runs them, from cases to trials to results, each yielded when available."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from opgauge.harness.case.case import Case
from opgauge.harness.result.figures import with_possible_figures
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

    Trials are ordered by device and case, the baseline first, so that all implementations of a case are adjacent
    and share its reference. Unregistered combinations are omitted silently: `opgauge list` lists what exists.
    `implementations` selects by name, and by default all but experimental ones; `finished` omits trials that have a
    result; with `cpu_fallback` an implementation that only the CPU has is planned for other devices too. Raises
    BackendError for an impossible device.
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
    """Run `trials`; a result is yielded, for the caller to store, before the next trial begins.

    ask: further request fields of each trial (see LocalExecutor.run_plain). Figures that no measurement can give make a
    result an error.
    """
    yield from map(with_possible_figures, executor.run(trials, block=block, ask=ask))


def _implementations(case: Case, backend: str, named: Collection[str] | None, *, cpu_fallback: bool) -> list[str]:
    backends = {backend, "cpu"} if cpu_fallback else {backend}
    there = [item for item in kernels(op=case.op, dtype=case.dtype) if item.key.backend in backends]
    names = {
        item.key.implementation
        for item in there
        if (not item.experimental if named is None else item.key.implementation in named)
    }
    return sorted(names, key=lambda name: (name != "baseline", name))
