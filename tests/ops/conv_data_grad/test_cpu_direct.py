"""conv_data_grad's multiply-adds tap by tap on the CPU, on several threads."""

from __future__ import annotations

import pytest

from opgauge.ops import ShapeError
from opgauge.ops.conv_data_grad import cpu
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.draws import drawn_of
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution

GROUPED = (
    Convolution((2, 9, 7, 9), (9, 1, 3, 3), add=True, params={"padding_before": 1, "groups": 9}),
    Convolution((2, 16, 8, 7), (24, 2, 3, 2), params={"strides": (2, 1), "dilation_rate": (1, 2), "groups": 8}),
    Convolution((1, 8, 4, 5, 6), (8, 1, 3, 1, 3), params={"padding_before": 1, "groups": 8, "strides": (2, 1, 1)}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_share_no_scratch(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Small groups are right on two threads too, in both layouts."""
    monkeypatch.setattr(cpu, "count", lambda *_: 2)
    for made in GROUPED:
        case = made.case("float32", layout)
        assert complaint(case, inputs_of(case), "optimized") == ""


def test_grouped_pointwise_channels_last() -> None:
    """1x1 convolutions with few groups and channels last are one product a group, with the addend or without."""
    for add in (False, True):
        made = Convolution((2, 30, 5, 6), (24, 10, 1, 1), add=add, params={"groups": 3})
        for dtype in drawn_of("conv_data_grad", ("float32", "float16", "float64")):
            case = made.case(dtype, "channels_last")
            assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize("last", [False, True])
def test_filters_without_taps_are_refused(last: bool) -> None:
    """A filter of length zero along an axis is a ShapeError that names the filter."""
    x, weight = ((2, 5, 3, 3), (4, 0, 3, 3)) if last else ((2, 3, 5, 3), (4, 3, 0, 3))
    params = ConvDataGradParams(data_format="channels_last" if last else "channels_first")
    with pytest.raises(ShapeError, match="no taps"):
        geometry(x, weight, params)
