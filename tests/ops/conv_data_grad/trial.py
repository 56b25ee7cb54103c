"""A 1x1 convolution for the kernels of a GPU, judged as often as launches are planned in another way."""

from __future__ import annotations

from collections.abc import Callable

from harness.measure import timer_for
from harness.worker.attempt import Attempt
from harness.worker.verify import expect
from ops import find_kernel
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import Convolution

Size = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shapes of x and of the filter, and groups."""


def judge_of(size: Size, dtype: str, layout: str, *, add: bool) -> Callable[[], str]:
    """What tells why the optimized kernel is wrong, planned anew at each call; empty where it is right."""
    x, weight, groups = size
    case = Convolution(x, weight, add=add, params={"groups": groups}).case(dtype, layout)
    inputs = inputs_of(case)
    expected = expect(case, inputs)
    timer = timer_for("cuda")
    kernel = find_kernel(case.op, "optimized", "cuda", dtype)

    def judge() -> str:
        with timer.session("numpy"):
            return Attempt(case, kernel, inputs.values, timer).judge(expected).reason

    return judge
