"""Every CUDA kernel is measured: a shipped case launches it, or it is a named fallback."""

from __future__ import annotations

from pathlib import Path

from opgauge.harness.case.file import load_cases
from opgauge.ops import find_kernel, kernels
from opgauge.ops._core import plans
from opgauge.ops._cuda.source import all_sources
from tests.launches import bind_and_run, recorded

CASES = Path(__file__).parents[1] / "cases"
PLANNED = ("mean", "dot", "p_norm", "conv_data_grad")
"""Ops whose optimized kernels always have a plan."""
IMPLEMENTATIONS = ("optimized", "tf32", "deterministic", "three_kernel")
"""Implementations with kernels of this project; the others are baselines and graphs of ops."""
GRAPHS = ("residual_block", "resnet50_adds")
FALLBACKS = {
    "flatten/gather": "inputs that are not contiguous",
    "mean/reduce_rows_block": "a kernel of include/, which cases of p_norm launch",
    "mean/reduce_slabs_block": "a kernel of include/, which cases of p_norm launch",
    "p_norm/reduce_rows_grid": "a kernel of include/, which cases of mean and dot launch",
}
"""Kernels by folder that no shipped case launches, with the shapes that need them."""


def test_every_kernel_is_launched_by_a_shipped_case() -> None:
    """The shipped cases launch all declared kernels but the fallbacks, and no fallback is one that they launch."""
    declared = {(source, expression.partition("<")[0]) for source in all_sources() for expression in source.expressions}
    with recorded() as launches:
        for case in load_cases([CASES]):
            for kernel in kernels(op=case.op, backend="cuda"):
                key = kernel.key
                if key.implementation in IMPLEMENTATIONS and key.dtype == case.dtype and case.op not in GRAPHS:
                    bind_and_run(case, find_kernel(*key), launches)
    idle = declared - {(launch.source, launch.kernel) for launch in launches}
    assert {f"{source.path.parent.name}/{name}" for source, name in idle} == set(FALLBACKS)


def test_plans_name_the_kernels_that_are_launched() -> None:
    """What a run stores for `show --why`: a plan for each case, of a reduction with the kernel that it launches."""
    for case in load_cases([CASES / f"{op}.yaml" for op in PLANNED]):
        with recorded() as launches, plans.recording() as announced:
            bind_and_run(case, find_kernel(case.op, "optimized", "cuda", case.dtype), launches)
        if not launches or case.op not in PLANNED:
            continue
        assert announced, case.id
        reductions = {text.partition("<")[0] for text in announced if text.startswith("reduce_")}
        assert reductions <= {launch.kernel for launch in launches}, case.id
        filled = {launch.kernel for launch in launches} <= {"fill", "fill_exact"}
        assert reductions or filled or case.op == "conv_data_grad", case.id
