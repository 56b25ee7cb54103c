"""Threads that work while nobody calls: they would compute results between calls, for which no call is timed.

`left_threads` judges threads of Python, which no kernel needs to run parallel loops. Threads of OpenMP and BLAS work
within calls, and wait actively for a while after them; they are at rest when inputs change without a call.
"""

from __future__ import annotations

from time import perf_counter, sleep

from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.left_threads import others_ns, others_wait_for_cpu

PAUSE_S = 0.005
"""Seconds without a call; longer than the interval in which systems update the CPU time of running threads."""
REST_NS = 10_000
"""CPU time of other threads in a pause, up to which they are at rest."""
REST_S = 0.5
"""Seconds after which threads are at rest at the latest: OpenMP and BLAS wait actively for up to 0.2 s."""
ROUNDS = 3
"""Number of times that threads must work without a call before it counts."""


def check_idle(audit: Audit, attempt: Attempt) -> None:
    """Change inputs without a call; raises WrongError if other threads work then."""
    if attempt.kernel.key.backend != "cpu" or others_ns() - audit.others_ns <= REST_NS:
        return
    for _ in range(ROUNDS):
        audit.change(whole=False, fresh=True)
        worked_ns = _worked_ns()
        audit.undo()
        if worked_ns <= REST_NS:
            return
        end = perf_counter() + REST_S
        while _worked_ns() > REST_NS:
            if perf_counter() > end:
                reason = f"its threads or child processes still work {REST_S:g} s after the call has returned"
                raise WrongError(reason)
    worked = f"its threads or child processes use {time_text(worked_ns)} of CPU time"
    reason = f"{worked} when inputs have changed, before a call begins"
    raise WrongError(reason)


def _worked_ns() -> int:
    """CPU time of other threads in a pause, which lasts while they wait for a CPU that another process uses."""
    before, end = others_ns(), perf_counter() + REST_S
    sleep(PAUSE_S)
    while others_ns() - before <= REST_NS and others_wait_for_cpu() and perf_counter() < end:
        sleep(PAUSE_S)
    return others_ns() - before
