"""Whether calls on changed inputs do more work, by wall time and CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from ctypes import CDLL
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.harness.result.result import Measurement
from opgauge.harness.worker import call_time, single_calls
from opgauge.harness.worker.attempt import WrongError
from opgauge.harness.worker.call_time import CallTime, Clocks
from opgauge.harness.worker.single_calls import PAIRS, check_loops, check_samples, is_dearer

MS = 1_000_000
ONE_THREAD, TWO_THREADS = CallTime(22 * MS, 22 * MS), CallTime(42 * MS, 21 * MS)
"""Calls of the same kernel on two threads that share a core: once the other thread came too late."""


@pytest.mark.parametrize(
    ("thorough", "usual", "dearer"),
    [
        ([TWO_THREADS] * 9, [TWO_THREADS] * 8 + [ONE_THREAD], False),
        ([TWO_THREADS] * 9, [CallTime(12 * MS, 12 * MS)] * 9, True),
        ([TWO_THREADS] * 9, [CallTime(42 * MS, 12 * MS)] * 9, True),
        ([TWO_THREADS._replace(wall_ns=90 * MS, disturbed=True)] * 9, [TWO_THREADS] * 9, False),
        ([TWO_THREADS._replace(wall_ns=90 * MS, disturbed=True)] * 9, [CallTime(12 * MS, 12 * MS)] * 9, True),
        ([TWO_THREADS] * 9, [CallTime(12 * MS, 90 * MS, disturbed=True)] * 9, True),
        ([TWO_THREADS._replace(disturbed=True)] * 9, [CallTime(21 * MS, 21 * MS, disturbed=True)] * 9, False),
        ([ONE_THREAD] * 9, [CallTime(22 * MS, 11 * MS)] * 9, False),
        ([ONE_THREAD] * 9, [CallTime(12 * MS, 6 * MS)] * 9, True),
        ([ONE_THREAD] * 9, [CallTime(12 * MS, 12 * MS)] * 9, True),
    ],
    ids=[
        "one thread once",
        "skips",
        "burns",
        "beside another process",
        "skips beside one",
        "skips and is disturbed",
        "waits in a loop beside one",
        "fewer threads",
        "skips on two threads",
        "skips on one thread",
    ],
)
def test_calls_that_do_more_work_are_dearer(thorough: list[CallTime], usual: list[CallTime], *, dearer: bool) -> None:
    """Wall time decides where calls were left alone, and CPU time too where they were not."""
    assert is_dearer(thorough, usual) is dearer


SLOW, FAST = CallTime(9 * MS, 9 * MS), CallTime(MS, MS)


def check_samples_of(*, few: bool = False, **facts: Any) -> None:
    """Check samples of one call on the CPU. facts: of the audit; few: a few elements decided its fresh values."""
    usual: Any = {"thorough": [], "usual": [], "fresh": 1, "can_freshen": True, "disturb": lambda *_, **__: None}
    audit: Any = SimpleNamespace(changes=SimpleNamespace(is_sampling_unnoticed=few), **(usual | facts))
    attempt: Any = SimpleNamespace(kernel=SimpleNamespace(key=SimpleNamespace(backend="cpu")))
    check_samples(audit, attempt, lambda: None, replace(SAMPLE, calls_per_sample=1))


@pytest.mark.parametrize(
    ("changed", "others", "passes"),
    [(0, 30, False), (1, 30, False), (2, 30, True), (0, 10, False), (0, 5, True)],
    ids=["repeats nothing", "knows one change", "works", "repeats at times", "is lucky at times"],
)
def test_a_few_fast_calls_may_be_chance(
    changed: int, others: int, monkeypatch: pytest.MonkeyPatch, *, passes: bool
) -> None:
    """A kernel that knows one of many changes repeats nothing; one that is fast at times whatever changed does."""
    thorough = cycle([*[SLOW] * 3, *[FAST] * changed, *[SLOW] * (PAIRS - 3 - changed)])
    usual = cycle([*[FAST] * others, *[SLOW] * (PAIRS - others)])
    monkeypatch.setattr(single_calls, "_time_thorough", lambda *_: [next(thorough)])
    monkeypatch.setattr(single_calls, "_time_call", lambda *_: next(usual))
    with nullcontext() if passes else pytest.raises(WrongError, match="does not repeat its work"):
        check_samples_of()


@pytest.mark.parametrize("works", [True, False])
def test_new_outputs_may_cost_page_faults(monkeypatch: pytest.MonkeyPatch, *, works: bool) -> None:
    """Calls that are dearer only where what was freed before them went back to the system do the same work."""
    kept = list[int]()

    @contextmanager
    def freed_memory_kept() -> Iterator[None]:
        kept.append(1)
        yield

    monkeypatch.setattr(single_calls, "freed_memory_kept", freed_memory_kept)
    monkeypatch.setattr(single_calls, "_time_thorough", lambda *_: [FAST if kept and works else SLOW])
    monkeypatch.setattr(single_calls, "_time_call", lambda *_: FAST)
    with nullcontext() if works else pytest.raises(WrongError, match="does not repeat its work"):
        check_samples_of()
    assert kept == [1]


FAULTS = """
import resource, numpy as np
from contextlib import nullcontext
from opgauge.harness.worker.freed_memory import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(40 << 20, np.uint8)[:: 4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

np._core.multiarray._set_madvise_hugepage(False)
for memory in (nullcontext(), freed_memory_kept(), nullcontext()):
    with memory:
        faults()
        print(faults())
"""


@pytest.mark.skipif(not hasattr(CDLL(None), "gnu_get_libc_version"), reason="another C library")
def test_freed_memory_is_kept() -> None:
    """A new array of many pages costs no page faults meanwhile, and costs them before and after."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=environment)
    before, kept, after = map(int, done.stdout.split())
    least, most = 5000, 500
    assert min(before, after) > least
    assert kept < most


@pytest.mark.parametrize(("fresh", "few", "calls"), [(0, True, 2), (0, False, 1), (1, True, 2), (1, False, 0)])
def test_samples_without_fresh_values_are_made_up_for(
    fresh: int, calls: int, monkeypatch: pytest.MonkeyPatch, *, few: bool
) -> None:
    """Beside most pairs of a gate no sample has them: the checked pair has calls on them after its last sample."""
    made = list[int]()

    def time_thorough(audit: Any, *_: Any) -> list[CallTime]:
        audit.fresh += 1
        made.append(audit.fresh)
        return [FAST]

    monkeypatch.setattr(single_calls, "_time_thorough", time_thorough)
    check_samples_of(few=few, thorough=[FAST], usual=[FAST] * 3, fresh=fresh)
    assert len(made) == calls


US = 1_000
SAMPLE = Measurement(
    samples_ns=(310.0 * US,), timer="cpu-wall/1", warmup=3, calls_per_sample=4, cpu_ns=(620.0 * US,), threads=2
)
"""Samples of a kernel of two threads."""
QUIET, SKIPPED = CallTime(4 * 620 * US, 4 * 320 * US), CallTime(4 * 1500 * US, 4 * 771 * US)
"""Loops beside nothing: of that kernel, and of one that skips work in samples."""
MUCH_SKIPPED = CallTime(2 * 4 * 1500 * US, 2 * 4 * 771 * US)
"""Loop beside nothing of a kernel that skips more."""
SPUN = CallTime(4 * 1500 * US, 4 * 771 * US, disturbed=True)
"""Loop of that kernel in which a thread waited for its CPU, and the other one for it."""
MUCH_SPUN = MUCH_SKIPPED._replace(disturbed=True)
"""Loop in which one waited longer."""


@pytest.mark.parametrize(
    ("loops", "slower", "count", "wrong"),
    [
        ([QUIET], 1, 1, False),
        ([SPUN] * 12 + [QUIET], 1, 13, False),
        ([SKIPPED] * 30, 1, 8, True),
        ([SPUN] * 10 + [SKIPPED] * 30, 1, 18, True),
        ([SPUN] * 30, 1, 30, True),
        ([SKIPPED] * 30, 2.4, 4, False),
        ([MUCH_SKIPPED] * 30, 4.8, 8, True),
        ([MUCH_SPUN] * 30, 4.8, 4, False),
    ],
    ids=[
        "honest",
        "beside others",
        "skips",
        "skips beside others",
        "skips and is always beside others",
        "honest on a slower host",
        "no longer skips",
        "as much beside others as samples are now",
    ],
)
def test_loops_count_beside_samples_alone(
    monkeypatch: pytest.MonkeyPatch, loops: list[CallTime], slower: float, count: int, *, wrong: bool
) -> None:
    """A difference counts where no process took a CPU, and else where CPU time says so in every one of many.

    slower: ratio of new samples to those before. Unless they are much slower, the host is.
    """
    again = replace(SAMPLE, samples_ns=(slower * 310 * US,), cpu_ns=(slower * 620 * US,))
    left = iter(loops)
    monkeypatch.setattr(single_calls, "Clocks", SimpleNamespace(now=lambda **_: SimpleNamespace(passed=left.__next__)))
    attempt: Any = SimpleNamespace(
        kernel=SimpleNamespace(key=SimpleNamespace(backend="cpu")),
        measure=lambda *_: SimpleNamespace(measurement=again),
    )
    audit: Any = None
    told = "310 µs in a sample and (771 µs|1.54 ms) in another loop"
    with pytest.raises(WrongError, match=told) if wrong else nullcontext():
        check_loops(audit, attempt, lambda: None, SAMPLE)
    assert len(loops) - len(list(left)) == count


@pytest.mark.parametrize(("waited_us", "disturbed"), [(0, False), (5, False), (500_000, True)])
def test_a_thread_that_waits_for_its_cpu_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waited_us: int, *, disturbed: bool
) -> None:
    """A thread that wakes while another process has its CPU is not switched away from, and waits."""
    (tmp_path / "7").mkdir()
    state = tmp_path / "7" / "schedstat"
    monkeypatch.setattr(call_time, "TASKS", tmp_path)
    monkeypatch.setattr(call_time, "switches_of_process", repeat(0).__next__)
    state.write_text(f"100 {US} 3")
    begun = Clocks.now(with_waits=True)
    begun = begun._replace(wall_ns=begun.wall_ns - 1_000 * US)
    state.write_text(f"200 {(1 + waited_us) * US} 4")
    assert begun.passed().disturbed is disturbed
