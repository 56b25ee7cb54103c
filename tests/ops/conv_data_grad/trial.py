"""A 1x1 convolution for the kernels of a GPU, judged as often as launches are planned in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel
from opgauge.ops._cuda.gemm.hopper import DTYPES
from opgauge.ops.conv_data_grad import cuda
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution

Size = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shapes of x and of the filter, and groups."""


def in_every_way(sizes: Sequence[Size]) -> Callable[[Any], Any]:
    """A test on a GPU of each size in each dtype and layout, with an addend and without."""

    def marked(test: Any) -> Any:
        for name, values in (("size", sizes), ("dtype", DTYPES), ("layout", LAYOUTS), ("add", [False, True])):
            test = pytest.mark.parametrize(name, values)(test)
        return pytest.mark.gpu(test)

    return marked


def judge_of(size: Size, dtype: str, layout: str, *, add: bool) -> Callable[[], str]:
    """What tells why the optimized kernel is wrong, planned anew at each call; empty where it is right."""
    x, weight, groups = size
    case = Convolution(x, weight, add=add, params={"groups": groups}).case(dtype, layout)
    inputs = inputs_of(case)
    expected = expect(case, inputs)
    timer = timer_for("cuda")
    kernel = find_kernel(case.op, "optimized", "cuda", dtype)

    def judge() -> str:
        with timer.session("numpy"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda, "is_small", lambda *_: False)
            return Attempt(case, kernel, inputs.values, timer).judge(expected).reason

    return judge
