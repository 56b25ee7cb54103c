"""Buffers in a file that two processes map."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.worker.inputs import empty_bytes
from opgauge.harness.worker.shared_memory import PAGE, allocating_in
from opgauge.ops import find_op

ONCE = Limits(budget_s=0.01, min_samples=1, max_samples=1, warmup_s=0.0)


@pytest.fixture
def file() -> Iterator[str]:
    """A file of 16 pages in memory."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 16 * PAGE)
    yield f"/proc/{os.getpid()}/fd/{descriptor}"
    os.close(descriptor)


def test_arrays_of_one_file_are_the_same_memory(file: str) -> None:
    """Two maps of a file give arrays at the same offsets: what is written through one is read through the other."""
    with allocating_in(file):
        first = [empty_bytes(size, "cpu") for size in (5, PAGE + 1, 7)]
    with allocating_in(file):
        second = [empty_bytes(size, "cpu") for size in (5, PAGE + 1, 7)]
    for number, array in enumerate(first, start=1):
        array[...] = number
    assert [set(array) for array in second] == [{1}, {2}, {3}]
    assert [array.size for array in second] == [5, PAGE + 1, 7]


def test_a_full_file_leaves_private_memory(file: str) -> None:
    """An array that does not fit into the file, and every array outside the context, is memory of this process."""
    with allocating_in(file):
        large, again = (empty_bytes(17 * PAGE, "cpu") for _ in range(2))
    outside = empty_bytes(PAGE, "cpu")
    large[...], again[...], outside[...] = 1, 2, 3
    assert np.all(large == 1)
    with allocating_in(file):
        assert not np.any(empty_bytes(16 * PAGE, "cpu"))


def test_a_held_trial_works_in_the_file(file: str) -> None:
    """A worker leaves a trial's outputs in the file, times it again there, and moves to another file when told."""
    case = Case("scale", "c5", {"x": (5,)}, "float32", find_op("scale").params())
    trial = to_json(Trial(case, "baseline", "cpu", "cpu"))
    with LocalExecutor(limits=ONCE) as executor:
        cpu = min(os.sched_getaffinity(0))
        executor.pin({cpu})
        result = executor.run_plain(trial, hold=True, memory=file)
        again = executor.sample(trial, ONCE, is_last=True)
    assert (result["status"], again["status"]) == ("ok", "ok"), (result["reason"], again["reason"])
    assert again["measurement"]["threads"] == 1
    with allocating_in(file):
        assert np.any(empty_bytes(16 * PAGE, "cpu"))
