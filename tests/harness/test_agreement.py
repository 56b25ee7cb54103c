"""Our clock beside others: what counts as agreeing, how cuda-bench is asked, and what a missing clock means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.cli import agree as verb
from opgauge.harness.errors import WorkerError
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import KernelUse, Profile, Trial
from opgauge.harness.store import Store
from opgauge.harness.store.self_tests import list_self_tests
from opgauge.harness.trust import yardstick
from opgauge.harness.trust.agreement import Agreement, as_data, sentences, summarize
from opgauge.harness.trust.yardstick import Pace, Yardstick, read_times
from opgauge.ops import available, find_op

ROOT = Path(__file__).parents[2]
ONE = Agreement("p_norm", "rows", "0" * 16, "float32", "optimized", 41_000.0, 41_200.0, 40_000.0, 1)
LIMITS = Limits(budget_s=0.01, min_samples=2, max_samples=3, warmup_s=0.0)


def a_trial(implementation: str = "optimized", device: str = "cuda:0") -> Trial:
    """A small p_norm."""
    case = Case("p_norm", "small", {"x": (64, 512)}, "float32", find_op("p_norm").params())
    return Trial(case, implementation, device.partition(":")[0], device)


@pytest.mark.parametrize(
    ("ours", "theirs", "agrees"),
    [
        (102_000.0, 100_000.0, True),
        (102_100.0, 100_000.0, False),
        (97_900.0, 100_000.0, False),
        (5_500.0, 5_000.0, True),
        (5_501.0, 5_000.0, False),
        (None, 5_000.0, None),
        (5_000.0, None, None),
    ],
)
def test_agreeing_with_cuda_bench(ours: float | None, theirs: float | None, agrees: bool | None) -> None:
    """Within 2 % or half a microsecond, whichever is more; without both times there is no answer."""
    assert replace(ONE, ours_ns=ours, bench_ns=theirs).agrees_with_bench is agrees


@pytest.mark.parametrize(
    ("kernels", "launches", "agrees"),
    [
        (40_000.0, 1, True),
        (39_700.0, 1, False),
        (43_000.0, 1, False),
        (30_000.0, 2, None),
        (9_999.0, 1, None),
        (None, None, None),
    ],
)
def test_agreeing_with_cupti(kernels: float | None, launches: int | None, agrees: bool | None) -> None:
    """Within 3 %, asked of single kernels of 10 µs or more only."""
    assert replace(ONE, kernels_ns=kernels, launches=launches).agrees_with_cupti is agrees


def test_the_summary_counts_what_lies_outside() -> None:
    """Shares are of what was compared; what had no second clock does not count as agreeing."""
    far = replace(ONE, bench_ns=30_000.0, kernels_ns=30_000.0)
    alone = replace(ONE, bench_ns=None, kernels_ns=None, launches=None)
    found = summarize([ONE, far, alone, replace(alone, ours_ns=None, reason="gone")])
    assert (found["trials"], found["untimed"]) == (4, 1)
    assert (found["bench_compared"], found["bench_outside"]) == (2, 1)
    assert (found["cupti_compared"], found["cupti_outside"]) == (2, 1)
    first, second = sentences(found)
    assert first.startswith("cuda-bench: 1 of 2 trials outside 2 % or 0.5 µs (50.0 %)")
    assert "1 of 2 single kernels ≥ 10 µs outside 3 %" in second
    assert sentences(summarize([alone])) == [
        "cuda-bench: nothing to compare with",
        "CUPTI's kernel time: nothing to compare with",
    ]
    (*_, third) = sentences(summarize([replace(ONE, kernels_ns=39_000.0, overhead_ns=1_900.0)]))
    assert third.startswith(
        "the same: 0 of 1 single kernels ≥ 10 µs outside 3 % (0.0 %), less an empty kernel's 1.90 µs"
    )
    json.dumps(as_data([ONE, far, alone], device="cuda:0"), allow_nan=False)


def a_report(*states: dict[str, Any]) -> dict[str, Any]:
    """A report as cuda-bench writes it."""
    return {"benchmarks": [{"states": list(states)}]}


def a_state(number: int, *, skipped: bool = False, **times: float) -> dict[str, Any]:
    """A point of the benchmark; times in seconds by the end of their tag."""
    return {
        "axis_values": [{"name": "trial", "type": "int64", "value": str(number)}],
        "is_skipped": skipped,
        "summaries": [
            {"tag": f"nv/cold/time/gpu/{name}", "data": [{"name": "value", "type": "float64", "value": str(value)}]}
            for name, value in times.items()
        ],
    }


def test_cuda_benchs_report_is_read() -> None:
    """Medians count, means where there is none; skipped points and points without a time have none."""
    report = a_report(
        a_state(0, mean=2e-5, median=1e-5), a_state(1, mean=3e-5), a_state(2, skipped=True, mean=1.0), a_state(3)
    )
    assert read_times(report) == {0: pytest.approx(1e4), 1: pytest.approx(3e4)}


class FakeBench:
    """cuda-bench that asks for each point once and reports 1 µs more for each."""

    def __init__(self) -> None:
        self.skipped: dict[int, str] = {}

    def register(self, function: Any) -> Any:
        """One benchmark."""
        self.function = function
        return SimpleNamespace(set_name=lambda name: None, add_int64_axis=self.add_axis)

    def add_axis(self, name: str, values: Any) -> None:
        """Its points."""
        self.values = list(values)

    def run_all_benchmarks(self, words: list[str]) -> None:
        """Run and report."""
        for number in self.values:
            self.function(
                SimpleNamespace(
                    get_int64=lambda _, number=number: number,
                    get_device=lambda: 0,
                    skip=lambda reason, number=number: self.skipped.__setitem__(number, reason),
                )
            )
        states = [a_state(number, skipped=number in self.skipped, mean=1e-6 * (number + 1)) for number in self.values]
        Path(words[words.index("--json") + 1]).write_text(json.dumps(a_report(*states)), encoding="utf-8")


def test_both_clocks_time_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are points of one benchmark; one that cannot run is skipped with its reason, the others go on."""
    bench = FakeBench()
    monkeypatch.setattr(yardstick, "import_module", lambda _: bench)
    trials = [a_trial(device="cpu"), a_trial("nobody", "cpu"), a_trial("baseline", "cpu")]
    first, missing, last = Yardstick(trials, LIMITS).run_beside(10)
    assert first.bench_ns == pytest.approx(1000)
    assert last.bench_ns == pytest.approx(3000)
    assert first.ours_ns is not None
    assert last.ours_ns is not None
    assert missing.ours_ns is missing.bench_ns is None
    assert "no kernel p_norm/nobody/cpu/float32" in missing.reason
    assert bench.skipped == {1: missing.reason[:200]}


def test_without_cuda_bench_our_times_are_there() -> None:
    """The process answers with our times alone where cuda-bench is not installed."""
    if yardstick.bench_version() is not None:
        pytest.skip("cuda-bench is installed")
    (pace,) = yardstick.measure([a_trial(device="cpu")], LIMITS)
    assert pace.ours_ns is not None
    assert pace.ours_ns > 0
    assert pace.bench_ns is None


def test_a_process_that_dies_costs_one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that shared a process with one that ends it are timed without it; that one has the reason."""

    def together(trials: list[Trial], _: Limits) -> list[Pace]:
        if any(trial.implementation == "deadly" for trial in trials):
            msg = "crashed"
            raise WorkerError(msg)
        return [Pace(1.0)] * len(trials)

    monkeypatch.setattr(yardstick, "_measure_together", together)
    trials = [a_trial("deadly" if number == 2 else "optimized") for number in range(5)]
    assert yardstick.measure(trials, LIMITS) == [Pace(1.0)] * 2 + [Pace(reason="crashed")] + [Pace(1.0)] * 2


def test_the_cpu_has_no_second_clock() -> None:
    """`agree` on the CPU, or without a GPU, compares nothing, says why, and ends with 5."""
    code = "from opgauge.harness.cli import main; main()"
    environment = {**os.environ, "OPGAUGE_DB": "sqlite://"}
    done = subprocess.run(
        [sys.executable, "-c", code, "agree", "--device", "cpu"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 5
    assert "the CPU has no second clock" in done.stderr


class FakeExecutor:
    """Lists one kernel of 40 µs for each trial."""

    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def profile(self, trials: list[Trial]) -> list[Profile]:
        """One kernel each."""
        return [Profile((KernelUse("[k]", 1, 40_000.0, 1.0),), 40_000.0, 20, "t", empty_ns=1_200.0) for _ in trials]


def test_what_was_found_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """`agree` keeps every trial and the summary as a self-test, and prints the shares outside."""
    url = f"sqlite:///{tmp_path / 'o.db'}"
    monkeypatch.setattr("opgauge.harness.run.execute.LocalExecutor", FakeExecutor)
    monkeypatch.setattr(yardstick, "measure", lambda trials, _: [Pace(41_000.0, 44_000.0, 3_000.0)] * len(trials))
    monkeypatch.setattr(yardstick, "bench_version", lambda: None)
    found = list(verb._measure([a_trial(), a_trial("baseline")], LIMITS, 1.0))
    verb._report(found, "cuda:0", url, as_json=False)
    said = capsys.readouterr()
    assert yardstick.MISSING in said.err
    assert "2 of 2 trials outside 2 % or 0.5 µs" in said.out
    assert "0 of 2 single kernels" in said.out
    assert "1.80 µs of events and launch" in said.out
    with Store.open(url) as store:
        (kept,) = list_self_tests(store.engine, "agree")
    assert kept.device == "cuda:0"
    assert kept.data["bench_outside"] == 2
    assert [trial["ours_ns"] for trial in kept.data["cases"]] == [41_000.0, 41_000.0]


@pytest.mark.gpu
def test_cuda_bench_times_what_we_time() -> None:
    """On a GPU with cuda-bench both clocks give a time, within a factor of two."""
    if "cuda" not in available() or yardstick.bench_version() is None:
        pytest.skip("no cuda, or no cuda-bench here")
    paces = yardstick.measure([a_trial(), a_trial("torch")], replace(LIMITS, max_samples=50))
    for pace in paces:
        assert pace.ours_ns, pace.reason
        assert pace.bench_ns
        assert 0.5 < pace.ours_ns / pace.bench_ns < 2
