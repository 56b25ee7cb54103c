"""A kernel that was called and is valid, with what its samples and checks need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from opgauge.harness.result.result import Measurement
from opgauge.harness.worker import protocol
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.emphasized_call import check_emphasis
from opgauge.harness.worker.left_threads import LeftThreads
from opgauge.harness.worker.phases import Phases
from opgauge.harness.worker.single_calls import check_beside
from opgauge.harness.worker.verify import Expected
from opgauge.ops import Bound

TRIES = 3
"""Checks that must find times wrong."""


@dataclass
class HeldKernel:
    """A kernel to be measured, and its expected outputs.

    returned: value of the last checked call. checks_beside: whether checks beside the samples follow the last one.
    """

    attempt: Attempt
    call: Bound
    reference: Callable[[], Expected]
    audit: Audit
    threads: LeftThreads
    returned: Any = None
    checks_beside: bool = False

    def check_beside(self, measurement: Measurement, phases: Phases) -> None:
        """Check calls beside the samples, one on emphasized inputs among them; raises WrongError.

        If only times are wrong, held kernels are checked again, as the executor does with others.
        """
        phases.begin(protocol.EMPHASIS)
        check_emphasis(self.audit, self.attempt, self.call)
        for left in reversed(range(TRIES if self.checks_beside else 1)):
            try:
                check_beside(self.audit, self.attempt, self.call, measurement, phases)
            except WrongError as error:
                if error.check is not None or phases.current != protocol.SINGLE_CALLS or not left:
                    raise
            else:
                return

    def believed(self, measurement: Measurement) -> Measurement:
        """A measurement without a hot time if captured calls leave other outputs than plain ones."""
        return replace(measurement, hot_ns=None) if self.audit.is_hot_wrong else measurement

    def check_after(self, phases: Phases) -> None:
        """Check one more call, on poisoned outputs and the original inputs, read-only; raises WrongError."""
        phases.begin("last call, on read-only inputs")
        with self.attempt.buffers.read_only():
            self.returned = self.attempt.call(self.call, 0)
        phases.begin("check after measuring")
        self.attempt.check(self.returned, self.reference, "after measuring")
        phases.repeatable = self.attempt.repeatable
