"""conv_data_grad on the CPU by products of single outputs, channels last."""

from __future__ import annotations

import pytest

from opgauge.ops.conv_data_grad import cpu, cpu_vectors
from opgauge.ops.conv_data_grad.op import geometry
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import Convolution

FEW = (
    Convolution((1, 40, 2, 2), (33, 40, 4, 1), params={"padding_before": (1, 0)}),
    Convolution((2, 7, 3), (5, 7, 4), params={"padding_before": 3, "strides": 2}),
    Convolution(
        (1, 6, 4, 5), (3, 6, 3, 3), params={"padding_before": (1, 2), "dilation_rate": (2, 3), "strides": (1, 2)}
    ),
    Convolution((1, 5, 2, 1, 3), (4, 5, 3, 2, 2), params={"padding_before": (2, 1, 0)}),
    Convolution((1, 8, 1, 1), (6, 8, 3, 5), params={"padding_before": (2, 2), "strides": 3}),
)
"""Taps and pixels that none meets; strides and dilation; one to three axes."""


@pytest.mark.parametrize("made", FEW)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("add", [False, True])
def test_outputs_one_by_one(made: Convolution, dtype: str, add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each times the taps that reach dx, also where other taps would be cut off first."""
    monkeypatch.setattr(cpu, "_prefers_vectors", lambda *_: True)
    made = Convolution(made.x, made.filter, add, made.params)
    case = made.case(dtype, "channels_last")
    assert not complaint(case, inputs_of(case), "optimized")


def test_few_reads_of_a_large_filter() -> None:
    """They are preferred to packing it, which several outputs or a smaller filter are not worth."""
    for x, filter_shape, is_few in (
        ((1, 512, 2, 2), (512, 512, 4, 1), True),
        ((1, 512, 20, 20), (512, 512, 4, 1), False),
        ((1, 16, 2, 2), (16, 16, 4, 1), False),
    ):
        case = Convolution(x, filter_shape, params={"padding_before": (1, 0)}).case("float32", "channels_last")
        found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
        assert cpu_vectors.are_vectors(found) == is_few
