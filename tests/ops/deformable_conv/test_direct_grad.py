"""deformable_conv_grad for few channels: emulated on the host."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker.verify import expect
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops.deformable_conv import cuda, cuda_grad
from tests.emulation.emulator import Emulator, emulated
from tests.ops.attempts import inputs_of
from tests.ops.deformable_conv.shapes import Shape, convolution

CASES: tuple[tuple[Shape, Shape, bool, dict[str, object]], ...] = (
    ((3, 3, 11, 8), (3, 1, 2, 2), False, {"groups": 3}),
    ((2, 6, 5, 7), (16, 3, 3, 3), False, {"groups": 2, "deformable_groups": 3}),
    ((2, 12, 5, 7), (12, 2, 3, 3), True, {"groups": 6, "deformable_groups": 2, "paddings": 1, "strides": (2, 1)}),
    ((1, 12, 5, 7), (9, 4, 2, 3), True, {"groups": 3, "deformable_groups": 2, "dilations": (2, 1)}),
    ((2, 5, 4, 4), (8, 5, 3, 3), True, {"paddings": 1, "need_x": False}),
    ((1, 4, 40, 60), (4, 2, 1, 2), False, {"groups": 2, "need_offset": False}),
    ((1, 2, 4, 5), (19, 2, 2, 2), True, {"need_filter": False}),
)
"""Shapes of x and filter, whether there is a mask, and parameters."""


def made(number: int, dtype: str) -> Case:
    """A case of `CASES`."""
    x, weight, masked, params = CASES[number]
    return convolution("deformable_conv_grad", dtype, x, weight, mask=masked, **params)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator in which the kernels of all cases are compiled at once."""
    with emulated(tmp_path_factory.mktemp("emulated")) as one, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_grad, "few", lambda _: True)
        for number, dtype in product(range(len(CASES)), FLOATS):
            case = made(number, dtype)
            one.attempt(case, inputs_of(case)).bind()
        one.compile()
        yield one


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_few_channels_give_what_the_reference_says(emulator: Emulator, number: int, dtype: str) -> None:
    """All gradients are right, by two launches for the filter's and two for the others."""
    case = made(number, dtype)
    inputs = inputs_of(case)
    emulator.mixed, emulator.seed = 1 + number % 3, number
    attempt = emulator.attempt(case, inputs, offset=number % 2 == 1)
    assert attempt.judge(expect(case, inputs)).reason == ""


def test_no_matrix_product_is_launched(emulator: Emulator) -> None:
    """The cases above launch kernels of kernels.cu alone."""
    assert set(emulator.asked) == {cuda.SOURCE}
