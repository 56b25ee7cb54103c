"""Kernels that break a GPU's context or never end: each trial has a result, and the next one is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status
from opgauge.harness.run.execute import LocalExecutor
from opgauge.ops import available
from opgauge.ops._cuda.source import compile_source
from tests.faulty.trial import between_right_ones, trial

QUICK = Limits(budget_s=0.01, min_samples=2, max_samples=3, warmup_s=0.0)
PRELOAD = ("tests.faulty.device",)


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    """An executor that waits 20 s for a kernel."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    with LocalExecutor(limits=QUICK, timeout_s=20, preload=PRELOAD) as made:
        yield made


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("implementation", "status", "words"),
    [
        ("illegal_access", Status.ERROR, "illegal"),
        ("device_assert", Status.ERROR, "assert"),
        ("endless_kernel", Status.TIMEOUT, "no answer after 20 s (first call)"),
        ("overrun_on_device", Status.WRONG, "wrote outside y, after the end"),
        ("exhaust_device", Status.OUT_OF_MEMORY, "OutOfMemory"),
    ],
)
def test_a_fault_on_a_gpu_is_a_result_and_the_batch_goes_on(
    executor: LocalExecutor, implementation: str, status: Status, words: str
) -> None:
    """A faulty kernel between two right ones has its own status and reason; the others are ok."""
    fault = between_right_ones(executor, replace(trial(implementation), backend="cuda", device="cuda:0"))
    assert fault.status is status, fault.reason
    assert words in fault.reason


def test_the_faulty_kernels_compile() -> None:
    """They fail where they run, not before."""
    names = ("illegal_access", "device_assert", "endless_kernel", "overrun")
    source = Path(__file__).parents[1] / "faulty" / "device.cu"
    assert set(compile_source(source, names, "sm_75").names) == set(names)
