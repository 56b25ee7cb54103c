"""Kernel lists: records into calls, calls into profiles, and CUPTI itself where there is a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits, cupti
from opgauge.harness.measure.cupti import Collector, Record, split_calls, summarize
from opgauge.harness.measure.footprint import demangle, graph_names, short_name
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import KernelUse, Profile, Result, Status, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.profiler import ON_CPU, Profiler
from opgauge.ops import BackendError, available, find_op

LIMITS = Limits(budget_s=0.05, min_samples=2, max_samples=5, warmup_s=0.0)


def records(*names: str, start: int = 0, length: int = 10) -> list[Record]:
    """Records one after another, `length` ns each."""
    return [Record(name, start + 100 * place, start + 100 * place + length) for place, name in enumerate(names)]


def a_trial(device: str, implementation: str = "optimized") -> Trial:
    """A small p_norm."""
    case = Case("p_norm", "small", {"x": (64, 512)}, "float32", find_op("p_norm").params())
    return Trial(case, implementation, device.partition(":")[0], device)


def test_a_call_lies_between_spin_and_empty() -> None:
    """Flushes before `spin`, and samples without an `empty` after them, are no part of a call."""
    found = records("[fill]", "spin", "a", "[fill]", "spin", "a", "b", "empty", "empty", "[fill]", "spin", "c", "empty")
    calls = split_calls(reversed(found))
    assert [[record.name for record in call] for call in calls] == [["a", "b"], ["c"]]


@settings(max_examples=50)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "[copy]", "[fill]"]), max_size=5), max_size=6))
def test_calls_are_found_again(calls: list[list[str]]) -> None:
    """Whatever calls launch, flushes and samples of the timer between them are taken away again."""
    names = ["[fill]", "spin", "a"]
    for call in calls:
        names += ["[fill]", "spin", *call, "empty"]
    assert [[record.name for record in call] for call in split_calls(records(*names))] == calls


def test_a_profile_has_times_launches_and_shares_of_one_call() -> None:
    """Launches of one kernel are added up; the longest kernel comes first; shares add up to one."""
    call = [
        Record("a", 0, 10, (1, 1, 1), (32, 1, 1), 20, 0, 0),
        Record("b", 20, 100, (2, 1, 1), (64, 1, 1), 30, 1024, 8),
        Record("a", 100, 130, (4, 1, 1), (32, 1, 1), 20, 0, 0),
    ]
    profile = summarize([call] * 3, "tool")
    assert [(kernel.name, kernel.launches, kernel.time_ns) for kernel in profile.kernels] == [
        ("b", 1, 80),
        ("a", 2, 40),
    ]
    assert [kernel.share for kernel in profile.kernels] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert profile.kernels[1].grid == (4, 1, 1)
    assert (profile.time_ns, profile.launches, profile.calls, profile.tool) == (120, 3, 3, "tool")


def test_a_first_call_that_tunes_is_left_out() -> None:
    """Calls that ran other kernels than most do not count."""
    profile = summarize([records("try", "a"), records("a"), records("a", length=30)], "")
    assert [(kernel.name, kernel.time_ns) for kernel in profile.kernels] == [("a", 20)]
    assert profile.calls == 2


@pytest.mark.parametrize(("calls", "reason"), [([], "no call was recorded"), ([[], []], "the call launches nothing")])
def test_nothing_seen_is_said(calls: list[list[Record]], reason: str) -> None:
    """A profile without kernels has no time, and says why."""
    profile = summarize(calls, "")
    assert (profile.reason, profile.time_ns, profile.kernels) == (reason, None, ())


def test_a_profile_survives_json() -> None:
    """A profile is the same after storing; names are kept as they are."""
    use = KernelUse("<script>[bold]\u202e", 2, 1.5, 1.0, (1, 2, 3), (4, 5, 6), 7, 8, 9)
    profile = Profile((use, KernelUse("[copy]", 1, 0.5, 0.0)), 2.0, 20, "cupti-python 13.0.1")
    result = Result(a_trial("cuda:0"), Status.OK, profile=profile)
    assert from_json(Result, to_json(result)).profile == profile


def test_names_are_demangled_and_shortened() -> None:
    """C++ names are shown as written, without return type and parameters; others stay as they are."""
    name = demangle("_Z4signIfLi4ELi2EEvPKT_PS0_i")
    assert name == "void sign<float, 4, 2>(float const*, float*, int)"
    assert short_name(name) == "sign<float, 4, 2>"
    assert short_name("ns::f((anonymous namespace)::g(int))") == "ns::f"
    assert demangle("maxwell_sgemm_128x64_nn") == short_name("maxwell_sgemm_128x64_nn") == "maxwell_sgemm_128x64_nn"
    assert demangle("_Znonsense") == "_Znonsense"
    assert short_name("(odd)") == "(odd)"
    assert short_name("void a::b::f<a::g<c::d>, a::b::e>(int)") == "a::b::f<g<d>, e>"
    assert short_name("k\x1b[31m\u202e") == "k?[31m?"
    assert len(short_name("x" * 500)) == 80
    assert len(demangle("x" * 5000)) == 500


class FakeCupti:
    """CUPTI that hands out records that a test chose."""

    class cuptiError(Exception):  # noqa: N801  its name there
        """What CUPTI raises."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, MEMCPY=1, MEMSET=2)

    def __init__(self, *activities: Any, allowed: bool = True) -> None:
        self.activities = activities
        self.enabled: list[int] = []
        self.allowed = allowed

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        """Buffers are asked for and handed back."""
        assert requested()[0] > 0
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        """One more kind of record."""
        if not self.allowed:
            msg = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
            raise self.cuptiError(msg)
        self.enabled.append(kind)

    def activity_flush_all(self, flag: int) -> None:
        """Everything at once."""
        self.completed(self.activities)


def a_kernel(name: str | None) -> Any:
    """A kernel's activity."""
    return SimpleNamespace(
        kind=10,
        name=name,
        start=5,
        end=9,
        registers_per_thread=32,
        static_shared_memory=100,
        dynamic_shared_memory=28,
        local_memory_per_thread=4,
        **{f"{what}_{axis}": size for what in ("grid", "block") for axis, size in zip("xyz", (8, 4, 1), strict=True)},
    )


def test_activities_become_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels come with their sizes, copies and fills with their times; each is handed out once."""
    fake = FakeCupti(
        a_kernel("k"), SimpleNamespace(kind=1, start=1, end=2), SimpleNamespace(kind=2, start=3, end=4), a_kernel(None)
    )
    monkeypatch.setattr(cupti, "load", lambda: fake)
    collector = Collector()
    assert fake.enabled == [10, 1, 2]
    found = collector.take()
    assert found[0] == Record("k", 5, 9, (8, 4, 1), (8, 4, 1), 32, 128, 4)
    assert [record.name for record in found] == ["k", "[copy]", "[fill]", "?"]
    fake.activities = ()
    assert collector.take() == []


def test_missing_rights_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUPTI refuses is a BackendError with its words."""
    monkeypatch.setattr(cupti, "load", lambda: FakeCupti(allowed=False))
    with pytest.raises(BackendError, match="INSUFFICIENT_PRIVILEGES"):
        Collector()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cupti-python the message says what to install."""

    def fail(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(cupti, "import_module", fail)
    with pytest.raises(BackendError, match="pip install cupti-python"):
        cupti.load()


def test_the_cpu_has_no_kernel_list() -> None:
    """A trial on the CPU gets a profile that says so, from the worker too."""
    assert Profiler(Bench(lambda _: None)).run(a_trial("cpu")).reason == ON_CPU
    with LocalExecutor(limits=LIMITS) as executor:
        assert [profile.reason for profile in executor.profile([a_trial("cpu")])] == [ON_CPU]


def test_a_device_that_is_not_there_is_a_reason() -> None:
    """Asking for the kernels of a trial on a missing device fails nothing."""
    assert "cuda:99" in Profiler(Bench(lambda _: None)).run(a_trial("cuda:99")).reason


def test_a_graph_that_cannot_be_read_has_no_names() -> None:
    """What is no captured graph gives None, not an empty list."""
    assert graph_names(SimpleNamespace()) is None


@pytest.fixture(scope="module")
def listed() -> dict[str, tuple[Result, Profile]]:
    """A small p_norm on the GPU by implementation: measured in one process, listed in another."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    trials = [a_trial("cuda:0", name) for name in ("baseline", "optimized", "torch")]
    with LocalExecutor(limits=LIMITS) as executor:
        results = list(executor.run(trials))
    with LocalExecutor() as executor:
        profiles = list(executor.profile(trials))
    names = (trial.implementation for trial in trials)
    return {name: (result, profile) for name, result, profile in zip(names, results, profiles, strict=True)}


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["baseline", "optimized", "torch"])
def test_cupti_and_the_captured_graph_agree(listed: dict[str, tuple[Result, Profile]], implementation: str) -> None:
    """The profiler sees as many launches, of the same kernels, as a captured graph of the call has."""
    result, profile = listed[implementation]
    assert result.status is Status.OK, result.reason
    if profile.reason:
        pytest.skip(profile.reason)
    assert result.measurement is not None
    footprint = result.measurement.footprint
    assert footprint is not None
    assert footprint.launches == profile.launches
    assert set(footprint.kernels or ()) == {kernel.name for kernel in profile.kernels}
    assert sum(kernel.share for kernel in profile.kernels) == pytest.approx(1)
    assert profile.time_ns is not None
    assert 500 < profile.time_ns < 1e6


@pytest.mark.gpu
def test_our_kernels_registers_are_the_profilers(listed: dict[str, tuple[Result, Profile]]) -> None:
    """The registers that the compiler reports are those that CUPTI sees; nothing is spilled or allocated."""
    result, profile = listed["optimized"]
    if profile.reason:
        pytest.skip(profile.reason)
    assert result.measurement is not None
    footprint = result.measurement.footprint
    assert footprint is not None
    assert footprint.registers == max(kernel.registers or 0 for kernel in profile.kernels)
    assert (footprint.spill_bytes, footprint.allocations) == (0, 0)
    assert all(kernel.grid and kernel.block for kernel in profile.kernels)


@pytest.mark.gpu
def test_a_composites_allocations_are_counted(listed: dict[str, tuple[Result, Profile]]) -> None:
    """The baseline, made of array operations, allocates temporaries and launches several kernels."""
    result, _ = listed["baseline"]
    assert result.measurement is not None
    footprint = result.measurement.footprint
    assert footprint is not None
    assert (footprint.allocations or 0) > 0
    assert (footprint.launches or 0) > 1
