"""Whether calls on changed inputs do more work, by wall time and CPU time."""

from __future__ import annotations

import pytest

from opgauge.harness.worker.call_time import CallTime
from opgauge.harness.worker.single_calls import is_dearer

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
    ],
    ids=["one thread once", "skips", "burns", "beside another process", "skips beside one", "skips and is disturbed"],
)
def test_calls_that_do_more_work_are_dearer(thorough: list[CallTime], usual: list[CallTime], *, dearer: bool) -> None:
    """Wall time decides where calls were left alone, and CPU time too where they were not."""
    assert is_dearer(thorough, usual) is dearer
