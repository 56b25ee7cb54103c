"""Implementations of p_norm (float32, porder inf, last axis) that leave threads behind, which wait or work.

Importing this module registers them, so only workers do: `LocalExecutor(preload=[…])`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.faulty.kernels import faulty, right, turn

POOLS: dict[str, ThreadPoolExecutor] = {}
"""Threads of kernels, by name."""
CALLS = Counter[str]()
"""Calls of kernels, by name."""
WORK_S = 0.05
"""CPU time of a thread that works; the time of a first call that compiles."""


def work() -> None:
    """Use the processor for a while."""
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


def submit(name: str, task: Callable[[], Any]) -> Any:
    """Run a task in the thread of a kernel."""
    return POOLS.setdefault(name, ThreadPoolExecutor(1, name)).submit(task)


@faulty
def compiles_in_a_thread(x: Any, out: dict[str, Any]) -> None:
    """As torch's compiler does: the thread works in the first call, and then waits for the next compilation."""
    if "compiler" not in POOLS:
        submit("compiler", work).result()
    right(x, out)


@faulty
def wakes_every_thread(x: Any, out: dict[str, Any]) -> None:
    """Computes what it should, while the thread of an earlier kernel works."""
    right(x, out)
    CALLS["waker"] += 1
    if CALLS["waker"] == 3 and "compiler" in POOLS:
        submit("compiler", work)


@faulty
def works_in_later_turns(x: Any, out: dict[str, Any]) -> None:
    """Its thread waits until the implementations take turns."""
    if "later" not in POOLS:
        submit("later", lambda: None).result()
    if turn("later") == 3:
        submit("later", work)
    right(x, out)


@faulty
def shares_its_work(x: Any, out: dict[str, Any]) -> None:
    """Waits for the thread of its pool, which computes."""
    submit("sharing", work).result()
    submit("sharing", lambda: right(x, out)).result()
