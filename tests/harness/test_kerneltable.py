"""Kernel lists on a terminal, and how a run gets and keeps them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.report import kernels as kerneltable
from opgauge.harness.report import plans
from opgauge.harness.result.result import KernelUse, Measurement, Profile, Result, Status, Trial
from opgauge.harness.run.environment import capture
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.store import Store
from opgauge.ops import find_op
from tests.commandline import Done, run_here
from tests.faulty.trial import trial

ROOT = Path(__file__).parents[2]
GEMM = KernelUse("maxwell_sgemm_128x64_nn", 2, 64_200.0, 0.642, (16, 8, 1), (128, 1, 1), 122, 8448, 0)
UNFOLD = KernelUse("void phi::[red]<float>(float const*)", 1, 35_800.0, 0.358)
PROFILE = Profile((GEMM, UNFOLD), 100_000.0, 20, "cupti-python 13.0.1")


def a_result(profile: Profile | None) -> Result:
    """A result that took 0.11 ms."""
    case = Case("p_norm", "small", {"x": (5, 7)}, "float32", find_op("p_norm").params())
    trial = Trial(case, "optimized", "cuda", "cuda:0")
    return Result(trial, Status.OK, measurement=Measurement((110_000.0,), "t", 1), profile=profile)


def shown(*results: Result) -> str:
    """What is printed."""
    out = io.StringIO()
    kerneltable.show(results, Console(file=out, width=140))
    return out.getvalue()


def test_the_table_is_like_a_profilers() -> None:
    """A line per kernel: share, time, launches, sizes and a short name; above it the sum and the gaps."""
    text = shown(a_result(PROFILE))
    assert "3 launches in 100 µs; cold 110 µs, gaps 10 µs of it" in text
    first, second = text.strip().splitlines()[-2:]
    assert first.split() == ["1", "64.20", "64.2", "µs", "2", "16,8", "×", "128", "122", "8,448", GEMM.name]
    assert second.split() == ["2", "35.80", "35.8", "µs", "1", "phi::[red]<float>"]


def test_what_has_no_list_is_counted_with_its_reason() -> None:
    """Results without a list are not passed over in silence."""
    text = shown(a_result(None), a_result(None), a_result(Profile(reason="[b]no rights")))
    assert "no kernel list for 2 results: not requested: measure with --profile" in text
    assert "no kernel list for 1 result: [b]no rights" in text


def test_plans_are_printed_with_their_reasons() -> None:
    """A line per plan of `show --why`; results without one are counted."""
    plan = "reduce_rows_once<2, 256> grid 132 block 256: short rows"
    with_plan = replace(a_result(None), extra={"plans": [plan, "[b]second"]})
    out = io.StringIO()
    plans.show([with_plan, a_result(None)], Console(file=out, width=140))
    lines = [line.strip() for line in out.getvalue().splitlines() if "p_norm" in line]
    assert [line.split("optimized")[1].strip() for line in lines] == [plan, "[b]second"]
    assert "no plan for 1 result" in out.getvalue()


def test_a_run_stores_what_a_kernel_announces() -> None:
    """The plans that host code announces while the kernel is bound and first called, and none from later calls."""
    with LocalExecutor(limits=Limits(budget_s=0.01), preload=("tests.faulty.planned",)) as executor:
        (found,) = executor.run([trial("announces")])
    assert found.status is Status.OK, found.reason
    assert found.extra["plans"] == ["max over rows: few rows"]


def test_a_stored_result_gets_its_list_later() -> None:
    """A profile is kept with the result that is there already, and its samples stay."""
    result = a_result(None)
    with Store.open("sqlite://") as store:
        run = store.begin_run(capture())
        store.add_result(run, result)
        store.add_profile(run, result.trial, PROFILE)
        (found,) = store.results(run, samples=True)
    assert found.profile == PROFILE
    assert found.measurement is not None
    assert found.measurement.samples_ns == (110_000.0,)
    assert found.host_gap_ns == 10_000.0


def test_a_profiled_run_on_the_cpu_says_that_there_is_no_list(tmp_path: Path) -> None:
    """On the CPU `run --profile` says why it lists nothing, as `show --kernels` does; it stores the calibration."""

    def opgauge(*arguments: str) -> Done:
        return run_here(*arguments, cwd=ROOT, variables={"OPGAUGE_DB": f"sqlite:///{tmp_path / 'run.db'}"})

    chosen = ("--name", "vector-small", "--dtype", "float32", "-i", "optimized", "--device", "cpu", "--budget", "0.02")
    done = opgauge("run", "cases/dot.yaml", *chosen, "--profile")
    assert done.returncode == 0, done.stderr
    assert "no kernel list for 1 result:" in done.stderr
    assert "not requested" in opgauge("show", "--kernels").stdout
    exported = json.loads(opgauge("export", "--samples").stdout)
    assert exported["results"][0]["ruler"]["copy_ns"] > 0
