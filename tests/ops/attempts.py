"""One kernel on one case: what it leaves, and what the checker says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.case.case import Case
from opgauge.harness.measure import timer_for
from opgauge.harness.measure.cpu import CpuTimer
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.inputs import Inputs, make_inputs, with_derived
from opgauge.harness.worker.verify import check, expect
from opgauge.ops import dtype_info, find_kernel, find_op, kernels

Array = NDArray[Any]


def case_of(op: str, shapes: Mapping[str, tuple[int, ...]], dtype: str, **params: Any) -> Case:
    """A case that no file has."""
    return Case(op=op, name="test", shapes=shapes, dtype=dtype, params=find_op(op).params(**params))


def inputs_of(case: Case, **given: Any) -> Inputs:
    """Generated inputs, those of `given` in their place; what the op derives follows from them."""
    drawn = dict(make_inputs(case).values)
    for name, value in given.items():
        spec = case.resolved.inputs[name]
        drawn[name] = np.asarray(value).astype(dtype_info(spec.dtype).numpy).reshape(spec.shape)
    return with_derived(case, drawn)


def outputs_of(case: Case, inputs: Inputs, implementation: str) -> dict[str, Array]:
    """What the CPU's `implementation` leaves, judged by nobody."""
    attempt = Attempt(case, find_kernel(case.op, implementation, "cpu", case.dtype), inputs.values, CpuTimer())
    attempt.call(attempt.bind(), 0)
    return {name: np.array(array) for name, array in attempt.buffers.out.items()}


def complaint(case: Case, inputs: Inputs, implementation: str, layout: str | None = None, backend: str = "cpu") -> str:
    """What the checker has against `implementation`, called twice; empty where nothing."""
    kernel = find_kernel(case.op, implementation, backend, case.dtype)
    return Attempt(case, kernel, inputs.values, timer_for(backend), layout=layout).judge(expect(case, inputs)).reason


def passes(case: Case, inputs: Inputs, **outputs: Any) -> bool:
    """Whether the checker takes `outputs` for right, once rounded to the dtype."""
    specs = case.resolved.outputs
    with np.errstate(all="ignore"):
        rounded = {
            name: np.asarray(value).astype(dtype_info(specs[name].dtype).numpy).reshape(specs[name].shape)
            for name, value in outputs.items()
        }
    return check(rounded, expect(case, inputs)).ok


def ours(op: str) -> list[str]:
    """Implementations of `op` on the CPU that are no peers."""
    return sorted({kernel.key.implementation for kernel in kernels(op=op, backend="cpu") if kernel.arrays == "numpy"})
