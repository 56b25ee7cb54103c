"""Compile and check trials before any of them is measured, by as many workers as there are CPUs.

Numba's kernels, torch.compile's and CUDA's are compiled when they are first called, and then lie in caches on disk.
Outputs that were right are known by the digest of their bits: who measures later needs no reference.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from threading import Condition
from typing import Any, Generic, TypeVar

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Result, Status, Trial, to_json
from opgauge.harness.run.environment import free_memory_bytes
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.runner import Finished
from opgauge.ops._core.op import tensor_bytes

T = TypeVar("T")
ONCE = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)
NEED = 12
"""Float64 numbers that a reference, its bounds and what they are made of hold per element of a case, about."""
SHARE = 0.5
"""Of the machine's memory that workers may fill so."""
KEPT_BYTES = 256 << 20
"""Inputs of larger cases are drawn again sooner than they would be read from a disk."""


@dataclass(slots=True)
class Ahead:
    """What is known of trials before they are measured.

    right: how many were. seconds: of all workers, by what they did. trusted: by trial, the digest of outputs that were
    checked, and that check. kept: a folder for inputs, or None. workers: how many compute references at once.
    """

    right: int = 0
    seconds: Counter[str] = field(default_factory=Counter)
    trusted: dict[Finished, Mapping[str, Any]] = field(default_factory=dict)
    kept: Path | None = None
    workers: int = 1

    def add(self, result: Result) -> None:
        """Another trial was called and checked; outputs that each call leaves other bits of are not known by them."""
        self.seconds.update(result.extra.get("phases_s", {}))
        if result.status is not Status.OK or result.check is None:
            return
        self.right += 1
        if "digest" in result.extra:
            self.trusted[_key(result.trial)] = {"digest": result.extra["digest"], "check": to_json(result.check)}

    def ask_first(self, trial: Trial) -> Mapping[str, Any]:
        """What is asked of a trial that is called for the first time: to keep the inputs, and tell what it left.

        Neither where nobody comes after it: a digest of large tensors takes as long as a call.
        """
        threads = max(1, len(os.sched_getaffinity(0)) // self.workers)
        return {
            "with_digest": self.kept is not None,
            "kept": self.folder(trial.case),
            "reference_threads": threads,
        }

    def ask(self, trial: Trial) -> Mapping[str, Any]:
        """What is asked of a trial that is measured: to take the inputs and to trust the outputs that are known."""
        return {"trusted": self.trusted.get(_key(trial)), "kept": self.folder(trial.case)}

    def folder(self, case: Case) -> str | None:
        """Where a case's inputs are kept; None where they are to be drawn anew."""
        return None if self.kept is None or tensor_bytes(case.resolved.inputs) > KEPT_BYTES else str(self.kept)


def compile_ahead(
    trials: Sequence[Trial],
    workers: int,
    tell: Callable[[Trial], None],
    *,
    timeout_s: float = 300.0,
    kept: Path | None = None,
) -> Ahead:
    """Call and check each trial's kernel once; `tell` hears of each. kept: a folder for inputs, to be used again.

    timeout_s: for a kernel, and for a reference as much again for each worker, as they all want memory at once: one
    of 20 s took more than 120 beside fifteen others.
    """
    waiting, ahead = Waiting((_need(case[0]), case) for case in _by_case(trials)), Ahead(kept=kept, workers=workers)
    with ThreadPoolExecutor(workers) as pool:
        parts = [pool.submit(_work, waiting, ahead, tell, (timeout_s, workers * timeout_s)) for _ in range(workers)]
        for part in parts:
            for result in part.result():
                ahead.add(result)
    return ahead


class Waiting(Generic[T]):
    """What is to be done, most memory first, and as much at a time as there is room for; threads share one."""

    def __init__(self, items: Iterable[tuple[int, T]]) -> None:
        """Of each how many bytes it needs, and itself."""
        self._items = sorted(items, key=lambda item: -item[0])
        self._room = free_memory_bytes() * SHARE
        self._under_way = 0
        self._changed = Condition()

    def __iter__(self) -> Iterator[T]:
        """The next as soon as there is room for it, which it leaves when the one after it is asked for."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._items or self._fitting() is not None)
                number = self._fitting()
                if number is None:
                    return
                nbytes, item = self._items.pop(number)
                self._room -= nbytes
                self._under_way += 1
            try:
                yield item
            finally:
                with self._changed:
                    self._room += nbytes
                    self._under_way -= 1
                    self._changed.notify_all()

    def _fitting(self) -> int | None:
        """The first that fits; the first of all where nothing is under way."""
        fitting = (number for number, (nbytes, _) in enumerate(self._items) if nbytes <= self._room)
        return next(fitting, None if self._under_way or not self._items else 0)


def need_bytes(shapes: Iterable[Sequence[int]]) -> int:
    """Memory that a reference takes, about, in a case of tensors of these shapes."""
    return 8 * NEED * max((prod(shape) for shape in shapes), default=0)


def _need(trial: Trial) -> int:
    shapes = trial.case.resolved
    return need_bytes(spec.shape for spec in [*shapes.inputs.values(), *shapes.outputs.values()])


def _by_case(trials: Iterable[Trial]) -> list[list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.case.id, []).append(trial)
    return list(found.values())


def _work(
    waiting: Waiting[list[Trial]], ahead: Ahead, tell: Callable[[Trial], None], timeouts_s: tuple[float, float]
) -> list[Result]:
    """One worker's part: cases as long as there are any. timeouts_s: a kernel's, and a reference's."""
    found = []
    kernel_s, reference_s = timeouts_s
    with LocalExecutor(limits=ONCE, timeout_s=kernel_s, reference_timeout_s=reference_s) as executor:
        for trials in waiting:
            for result in executor.run(trials, ask=ahead.ask_first):
                found.append(result)
                tell(result.trial)
    return found


def _key(trial: Trial) -> Finished:
    return trial.case.id, trial.implementation, trial.device
