"""Compiling and checking trials before any is measured, with as many workers as there are CPUs.

Kernels of Numba, torch.compile and CUDA are compiled by their first call, and then cached on disk. Valid outputs are
recognized by a digest of their bits, so that measuring needs no reference.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from threading import Condition
from typing import Any, Generic, TypeVar

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.run.environment import free_memory_bytes
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.runner import Finished
from opgauge.ops._core.op import tensor_bytes

T = TypeVar("T")
ONCE = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)
"""Limits of a trial that is called once."""
NEED = 12
"""Approximate float64 numbers per element of a case that a reference, its bounds and their operands need."""
SHARE = 0.5
"""Share of the machine's memory that workers may fill."""
KEPT_BYTES = 256 << 20
"""Size of inputs above which drawing them again is faster than reading them from a disk."""


@dataclass(slots=True)
class Ahead:
    """Results of calling trials before they are measured.

    right: number of valid trials. faults: results of the others. seconds: of all workers, by phase. trusted: by trial,
    the digest of checked outputs, and the check. kept: a folder for inputs, or None. workers: number of references
    computed at once.
    """

    right: int = 0
    faults: list[Result] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    trusted: dict[Finished, Mapping[str, Any]] = field(default_factory=dict)
    kept: Path | None = None
    workers: int = 1

    def add(self, result: Result) -> None:
        """Record a trial that was called and checked; outputs whose bits differ between calls have no digest."""
        self.seconds.update(result.extra.get("phases_s", {}))
        if result.status is not Status.OK or result.check is None:
            self.faults.append(result)
            return
        self.right += 1
        if "digest" in result.extra:
            self.trusted[result.trial.key] = {"digest": result.extra["digest"], "check": to_json(result.check)}

    def ask_first(self, trial: Trial) -> Mapping[str, Any]:
        """Request fields of a trial that is called for the first time: store the inputs, and digest the outputs.

        Neither is requested if no later process will use it: hashing large tensors costs as much as a call. Checks that
        compare times are left to the process that measures: here other workers use the same device.
        """
        threads = max(1, len(os.sched_getaffinity(0)) // self.workers)
        return {
            "with_digest": self.kept is not None,
            "kept": self.folder(trial.case),
            "reference_threads": threads,
            "extra_checks": False,
        }

    def ask(self, trial: Trial) -> Mapping[str, Any]:
        """Request fields of a trial that is measured: load the inputs, and trust outputs with a known digest."""
        return {"trusted": self.trusted.get(trial.key), "kept": self.folder(trial.case)}

    def folder(self, case: Case) -> str | None:
        """Folder of a case's inputs; None if they are to be drawn again."""
        return None if self.kept is None or tensor_bytes(case.resolved.inputs) > KEPT_BYTES else str(self.kept)


def compile_ahead(
    trials: Sequence[Trial],
    workers: int,
    tell: Callable[[Trial], None],
    *,
    timeout_s: float = 300.0,
    kept: Path | None = None,
) -> Ahead:
    """Call and check each trial's kernel once; `tell` is called with each. kept: folder in which inputs are stored.

    timeout_s: seconds for a kernel, and for a reference times the number of workers, since references are bound by
    memory: one of 20 s took more than 120 s beside fifteen others.
    """
    waiting, ahead = (
        Waiting((case_bytes(case[0].case), case) for case in _by_case(trials)),
        Ahead(kept=kept, workers=workers),
    )
    executors: list[LocalExecutor] = []
    timeouts_s = (timeout_s, workers * timeout_s)
    with ThreadPoolExecutor(workers) as pool, stopping([waiting], executors):
        parts = [pool.submit(_work, waiting, ahead, tell, timeouts_s, executors) for _ in range(workers)]
        for part in parts:
            for result in part.result():
                ahead.add(result)
    return ahead


@contextmanager
def stopping(waiting: Iterable[Waiting[Any]], executors: Iterable[LocalExecutor]) -> Iterator[None]:
    """Let threads that work off these queues end at once where the block ends with an error, such as Ctrl-C.

    executors: those of the threads so far, which may add theirs later.
    """
    try:
        yield
    except BaseException:
        for one in waiting:
            one.stop()
        for executor in tuple(executors):
            executor.interrupt()
        raise


class Waiting(Generic[T]):
    """A queue shared by threads: largest memory first, and only items that fit the free memory."""

    def __init__(self, items: Iterable[tuple[int, T]]) -> None:
        """items: bytes that each needs, and the item."""
        self._items = sorted(items, key=lambda item: -item[0])
        self._room = free_memory_bytes() * SHARE
        self._running = 0
        self._changed = Condition()

    def __iter__(self) -> Iterator[T]:
        """The next item as soon as it fits; its memory counts as used until the following item is requested."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._items or self._fitting() is not None)
                number = self._fitting()
                if number is None:
                    return
                nbytes, item = self._items.pop(number)
                self._room -= nbytes
                self._running += 1
            try:
                yield item
            finally:
                with self._changed:
                    self._room += nbytes
                    self._running -= 1
                    self._changed.notify_all()

    def stop(self) -> None:
        """Hand out no further item."""
        with self._changed:
            self._items.clear()
            self._changed.notify_all()

    def _fitting(self) -> int | None:
        """Index of the first item that fits; 0 if nothing is running."""
        fitting = (number for number, (nbytes, _) in enumerate(self._items) if nbytes <= self._room)
        return next(fitting, None if self._running or not self._items else 0)


def need_bytes(shapes: Iterable[Sequence[int]]) -> int:
    """Approximate memory in bytes that a reference needs, for tensors of these shapes."""
    return 8 * NEED * max((prod(shape) for shape in shapes), default=0)


def case_bytes(case: Case) -> int:
    """Approximate memory in bytes that the reference of a case needs."""
    shapes = case.resolved
    return need_bytes(spec.shape for spec in [*shapes.inputs.values(), *shapes.outputs.values()])


def _by_case(trials: Iterable[Trial]) -> list[list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.case.id, []).append(trial)
    return list(found.values())


def _work(
    waiting: Waiting[list[Trial]],
    ahead: Ahead,
    tell: Callable[[Trial], None],
    timeouts_s: tuple[float, float],
    executors: list[LocalExecutor],
) -> list[Result]:
    """Run one worker: cases until none is left. timeouts_s: for a kernel, and for a reference.

    executors: the list to which this worker's is added.
    """
    found = []
    kernel_s, reference_s = timeouts_s
    with LocalExecutor(limits=ONCE, timeout_s=kernel_s, reference_timeout_s=reference_s) as executor:
        executors.append(executor)
        for trials in waiting:
            for result in executor.run(trials, ask=ahead.ask_first):
                found.append(result)
                tell(result.trial)
    return found
