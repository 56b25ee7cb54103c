"""Every cheat is flagged, and no kernel that follows one suffers from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Result, Status
from opgauge.harness.run import execute
from opgauge.harness.run.execute import LocalExecutor
from opgauge.ops._cuda.source import compile_source
from tests.cheats.catalogue import CHEATS, LATE, Cheat, trial
from tests.cheats.detecting import FAKE_NS
from tests.cheats.device_launch import SOURCE
from tests.draws import some

MODULES = (
    "numba",
    "tests.cheats.undone",
    "tests.cheats.dropped",
    "tests.cheats.adaptive",
    "tests.cheats.inventive",
    "tests.cheats.mischief",
    "tests.cheats.lasting",
    "tests.cheats.waiting",
    "tests.cheats.detecting",
    "tests.cheats.unwatched",
    "tests.cheats.unjudged",
    "tests.cheats.between",
    "tests.cheats.deferred",
    "tests.cheats.past_the_clock",
    "tests.cheats.unlisted",
    "tests.cheats.in_native_code",
    "tests.cheats.on_device",
    "tests.cheats.on_device_state",
    "tests.cheats.on_libraries",
    "tests.cheats.on_streams",
)
SPREADING = ("process", "state left behind", "changing inputs")
"""Families from which the next kernel may suffer."""
for _name in MODULES[1:]:
    import_module(_name)
LIMITS = Limits(budget_s=0.1, min_samples=3, max_samples=20, warmup_s=0.005)
COLD_ONLY = {"works_less_when_captured": "its cold time is that of its work"}
"""Cheats that pass without a hot time, and why."""
LEAST_KINDS, LEAST_ON_DEVICE = 199, 80
SOMETIMES = {
    "is_wrong_once_in_a_hundred": "a run of few calls may miss it",
    "adds_the_last_half_in_background": "with a core to spare the thread may be done when the call returns",
    "leaves_rows_to_a_warm_pool": "with a core to spare the thread is done when the call returns",
    "leave_managed_allocator": "the process may crash, or the allocator is put back",
    "skips_what_is_unchanged_after_many_calls": "beside busy processes calls in a row are interrupted, and it works",
}
"""Cheats that may pass, and why."""
AT_WORK = {
    "skips_when_large_output_is_there": "the poison before it makes it work",
    "skips_when_device_output_is_there": "the poison before it makes it work",
    "skips_within_a_millisecond": "the pause before it makes it work",
    "skips_and_waits_when_alone": "it takes as long as the work",
}
"""Cheats that may pass where a sample is one call, as on a GPU or a busy host: its time is that of the work."""
WORKING_CALLS = {"skips_after_many_calls_in_a_row": 400}
"""Calls of a sample in which cheats work, and pass where it has no more."""


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    """One executor for all: a cheat must leave it fit for the next kernel."""
    with LocalExecutor(limits=LIMITS, timeout_s=20, preload=MODULES) as made:
        yield made


def of_device(backend: str) -> list[Cheat]:
    """The cheats of a backend, except those that need interleaved samples."""
    return [cheat for cheat in CHEATS.values() if cheat.device.partition(":")[0] == backend and cheat.family != LATE]


INTERLEAVED = (
    ("remembers_by_checksum", LIMITS.budget_s),
    ("remembers_by_checksum", 0.001),
    ("permutes_its_old_result", LIMITS.budget_s),
    ("skips_within_a_millisecond", LIMITS.budget_s),
    ("skips_in_later_rounds", LIMITS.budget_s),
)
"""Cheats to interleave with an honest kernel, and the budgets in seconds: a run takes three."""
SHARING = ("remembers_for_another", "remembers_what_another_computed")
"""Cheats that share what they remember, and are tested one after the other."""
REPEATED = some("repeated cheats", sorted(CHEATS), len(CHEATS) // 4)
"""Cheats that an executor repeats as any kernel that is wrong by its times alone. Others are flagged the first time."""


def repeats(cheat: Cheat) -> AbstractContextManager[Any]:
    """A context in which a cheat that this run did not draw is not repeated: a repetition costs as much again."""
    if cheat.name in REPEATED:
        return nullcontext()
    is_wrong_by_time = execute._is_wrong_by_time

    def is_repeated(result: Mapping[str, Any]) -> bool:
        return result["trial"]["implementation"] != cheat.name and is_wrong_by_time(result)

    return patch.object(execute, "_is_wrong_by_time", is_repeated)


def assert_flagged(cheat: Cheat, found: Result) -> None:
    """A result of a cheat has no time, and a reason; some pass at times, without a gain, and honest ones always do."""
    if cheat.harmless:
        assert found.status is Status.OK, found.reason
        return
    if cheat.name in SOMETIMES and found.status is Status.OK:
        return
    if cheat.name in COLD_ONLY and found.measurement is not None and found.measurement.hot_ns is None:
        return
    if cheat.name in AT_WORK and found.measurement is not None and found.measurement.calls_per_sample == 1:
        return
    if found.measurement is not None and found.measurement.calls_per_sample <= WORKING_CALLS.get(cheat.name, 0):
        return
    assert found.status is not Status.OK, found.measurement
    assert found.measurement is None
    assert found.reason


@pytest.mark.parametrize(
    "cheat", [cheat for cheat in of_device("cpu") if cheat.name not in SHARING], ids=lambda cheat: cheat.name
)
def test_a_cheat_is_flagged(executor: LocalExecutor, cheat: Cheat) -> None:
    """It has no time, and a reason; the honest kernel after one that touches its process is ok."""
    with repeats(cheat):
        (found,) = executor.run([trial(cheat)])
    assert_flagged(cheat, found)
    if cheat.family in SPREADING:
        (after,) = executor.run([trial(cheat, "baseline")])
        assert after.status is Status.OK, after.reason


@pytest.mark.parametrize(("name", "budget_s"), some("interleaved cheats", INTERLEAVED, 3))
def test_a_cheat_is_flagged_when_interleaved(name: str, budget_s: float) -> None:
    """All samples are compared after the last one, also where few fit; the honest kernel beside it is ok."""
    cheat, limits = CHEATS[name], replace(LIMITS, turns=2, budget_s=budget_s)
    with repeats(cheat), LocalExecutor(limits=limits, timeout_s=60, preload=MODULES) as executor:
        honest, found = executor.run([trial(cheat, "baseline"), trial(cheat)])
    assert_flagged(cheat, found)
    assert honest.status is Status.OK, honest.reason


def test_a_kernel_is_flagged_that_knows_what_another_one_computed(executor: LocalExecutor) -> None:
    """Values that both have had do not count when times are compared."""
    first, second = (CHEATS[name] for name in SHARING)
    with repeats(first), repeats(second):
        for cheat, found in zip((first, second), executor.run([trial(first), trial(second)]), strict=True):
            assert_flagged(cheat, found)


def test_a_clock_replaced_in_later_rounds_times_nobody() -> None:
    """Any of the kernels may have done it, so each is measured again by itself."""
    cheat = CHEATS["replaces_the_clock_in_later_rounds"]
    with LocalExecutor(limits=replace(LIMITS, turns=2), timeout_s=60, preload=MODULES) as executor:
        for found in executor.run([trial(cheat, "baseline"), trial(cheat)]):
            assert found.status is Status.OK, found.reason
            assert found.measurement is not None
            assert FAKE_NS / found.measurement.calls_per_sample not in found.measurement.samples_ns


def test_a_clock_replaced_in_the_first_trial_is_noticed(executor: LocalExecutor) -> None:
    """The timer is loaded before the first trial of a process, not by it."""
    executor.renew()
    (found,) = executor.run([trial(CHEATS["replace_clock"])])
    assert_flagged(CHEATS["replace_clock"], found)


@pytest.mark.gpu
@pytest.mark.parametrize("cheat", of_device("cuda"), ids=lambda cheat: cheat.name)
def test_a_cheat_on_a_gpu_is_flagged(executor: LocalExecutor, cheat: Cheat) -> None:
    """It has no time, and a reason; the honest kernel after it is ok."""
    found, after = executor.run([trial(cheat), trial(cheat, "baseline")])
    assert_flagged(cheat, found)
    assert after.status is Status.OK, after.reason


def test_the_kernels_of_the_cheats_compile() -> None:
    """They are compiled where they run; here without a GPU."""
    names = tuple(re.findall(r"__global__ void (\w+)\(", SOURCE.read_text(encoding="utf-8")))
    assert set(compile_source(SOURCE, names, "sm_75").names) == set(names)


def test_the_suite_has_many_kinds() -> None:
    """Families and kinds are not lost as modules move."""
    assert len(CHEATS) >= LEAST_KINDS
    assert len(of_device("cuda")) >= LEAST_ON_DEVICE
    assert len({cheat.family for cheat in CHEATS.values()}) >= 8
