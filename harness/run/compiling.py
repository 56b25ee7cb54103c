"""Compile what trials need before any of them is measured, by as many workers as there are CPUs.

Numba's kernels, torch.compile's and CUDA's are compiled when they are first called, and then lie in caches on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from harness.measure import Limits
from harness.result.result import Status, Trial
from harness.run.execute import LocalExecutor

ONCE = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)


def compile_ahead(
    trials: Sequence[Trial], workers: int, tell: Callable[[Trial], None], *, timeout_s: float = 300.0
) -> int:
    """Call each trial's kernel once and forget what came of it; gives how many were right. `tell` hears of each."""
    waiting: SimpleQueue[list[Trial]] = SimpleQueue()
    by_case: dict[str, list[Trial]] = {}
    for trial in trials:
        by_case.setdefault(trial.case.id, []).append(trial)
    for case in by_case.values():
        waiting.put(case)
    with ThreadPoolExecutor(workers) as pool:
        counts = [pool.submit(_work, waiting, tell, timeout_s) for _ in range(workers)]
        return sum(count.result() for count in counts)


def _work(waiting: SimpleQueue[list[Trial]], tell: Callable[[Trial], None], timeout_s: float) -> int:
    """One worker's part: the cases that are left, until none is."""
    right = 0
    with LocalExecutor(limits=ONCE, timeout_s=timeout_s) as executor:
        while True:
            try:
                case = waiting.get_nowait()
            except Empty:
                return right
            for result in executor.run(case):
                right += result.status is Status.OK
                tell(result.trial)
