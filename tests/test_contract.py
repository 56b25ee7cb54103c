"""Every registered kernel keeps the contract, on every small case of its op.

It writes what the reference says, twice in a row, whatever was in the outputs before; it
changes no input and writes nowhere else; it takes arrays that are only element-aligned.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import Timer, timer_for
from opgauge.harness.result.result import Status
from opgauge.harness.worker.attempt import Attempt, KernelFailedError
from opgauge.harness.worker.inputs import Inputs, make_inputs
from opgauge.harness.worker.verify import Expected, expect
from opgauge.ops import Kernel, OpError, available, find_kernel, kernels
from tests.draws import some

CASES = Path(__file__).parents[1] / "cases"
COMPILED = ("torch_compile",)
"""Compiling takes 10 to 20 s a case: a run takes one case, in one dtype and layout, of a few ops drawn at random."""
COMPILED_OPS = 3
COMPILED_DTYPE = "float32"
DISAGREES = {("deformable_conv_grad", "torchvision"): "whole-offsets"}
"""torchvision differentiates a sample at exactly -1, which by the rule is outside and has no gradient."""


@cache
def smoke_cases() -> tuple[Case, ...]:
    """All small cases."""
    return tuple(load_cases([CASES], tags=["smoke"]))


@cache
def cases_of(op: str, dtype: str) -> tuple[Case, ...]:
    """The small cases of `op`, in `dtype` where the op's rules allow that."""
    found = {}
    for case in smoke_cases():
        if case.op == op:
            moved = case if case.dtype == dtype else replace(case, dtype=dtype)
            try:
                moved.resolved  # noqa: B018  the shape rule has its say
            except OpError:
                continue
            found[moved.id] = moved
    return tuple(found.values())


@cache
def prepared(op: str, dtype: str, number: int) -> tuple[Inputs, Expected]:
    """Inputs and reference of a small case, shared by all kernels."""
    case = cases_of(op, dtype)[number]
    inputs = make_inputs(case)
    return inputs, expect(case, inputs)


@cache
def timer(backend: str) -> Timer:
    """One timer a backend, for its stream."""
    return timer_for(backend)


def every_kernel() -> list[Any]:
    """All kernels of ops that have small cases, in both layouts; those for CUDA are marked."""
    with_cases = {case.op for case in smoke_cases()}
    compiled_ops = some("torch_compile", sorted(with_cases), COMPILED_OPS)
    found = []
    for kernel in kernels():
        key = kernel.key
        marks = [pytest.mark.gpu] * (key.backend == "cuda") + [pytest.mark.experimental] * kernel.experimental
        compiled = key.implementation in COMPILED
        if compiled and key.backend == "cpu" and key.op not in compiled_ops:
            continue
        if key.op in with_cases and not (compiled and key.dtype != COMPILED_DTYPE):
            layouts = ("contiguous", "offset", *(["transposed"] * kernel.strided))
            if compiled or (kernel.arrays == "torch" and key.backend == "cuda"):
                layouts = ("contiguous",)  # torch's own kernels fail on memory that is only element-aligned
            found += [pytest.param(*key, layout, id=f"{key}/{layout}", marks=marks) for layout in layouts]
    return found


def complaints(kernel: Kernel, layout: str) -> list[str]:
    """What is wrong with `kernel`, case by case."""
    key = kernel.key
    found = []
    cases = cases_of(key.op, key.dtype)
    with timer(key.backend).session(kernel.arrays):
        for number, case in enumerate(cases[:1] if key.implementation in COMPILED else cases):
            if DISAGREES.get((key.op, key.implementation)) == case.name:
                continue
            if not kernel.strided and any(spec.layout == "transposed" for spec in case.inputs.values()):
                continue
            inputs, expected = prepared(key.op, key.dtype, number)
            own = layout if not any(spec.layout == "transposed" for spec in case.inputs.values()) else None
            attempt = Attempt(case, kernel, inputs.values, timer(key.backend), layout=own)
            try:
                check = attempt.judge(expected)
            except KernelFailedError as error:
                if error.status is not Status.UNSUPPORTED:
                    found.append(f"{case.name} {case.params}: {error}")
                continue
            if not check.ok:
                found.append(f"{case.name} {case.params}: {check.reason}")
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize(("op", "implementation", "backend", "dtype", "layout"), every_kernel())
def test_kernel_keeps_the_contract(op: str, implementation: str, backend: str, dtype: str, layout: str) -> None:
    """Right outputs twice in a row, untouched inputs and guards, in aligned and unaligned memory."""
    if backend not in available():
        pytest.skip(f"no {backend} here")
    kernel = find_kernel(op, implementation, backend, dtype)
    found = complaints(kernel, layout)
    assert not found, f"{len(found)} of {len(cases_of(op, dtype))}:\n" + "\n".join(found)
