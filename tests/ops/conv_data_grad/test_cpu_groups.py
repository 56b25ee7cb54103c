"""conv_data_grad group by group on the CPU, and additions of columns that are listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opgauge.ops import FLOATS
from opgauge.ops.conv_data_grad import cpu
from opgauge.ops.conv_data_grad.cpu_columns import are_rows, has_links
from opgauge.ops.conv_data_grad.cpu_costs import Way, way_of
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.draws import drawn_of
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution, complaints

GROUPED = (
    Convolution((2, 48, 7, 9), (40, 24, 3, 3), params={"padding_before": 1, "groups": 2}),
    Convolution((1, 36, 6, 5), (24, 12, 2, 3), params={"groups": 3, "dilation_rate": (2, 1)}),
    Convolution((2, 24, 9, 8), (16, 6, 3, 3), params={"padding_before": 1, "groups": 4, "strides": 2}),
    Convolution((3, 12, 13), (9, 4, 4), params={"groups": 3, "strides": 3, "dilation_rate": 2}),
    Convolution((1, 16, 3, 5, 4), (8, 8, 1, 3, 2), params={"groups": 2, "padding_before": (0, 1, 1)}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", GROUPED)
def test_groups_as_convolutions_of_their_own(made: Convolution, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles, by residue classes and by BLAS, with an addend or without."""
    monkeypatch.setattr(cpu, "way_of", lambda found, wide: Way.GROUPS if found.groups > 1 else way_of(found, wide))
    assert complaints(made, layout) == {""}


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("x", "weight", "strides", "alone"),
    [
        ((8, 8, 8, 192), (16, 3, 3, 96), 2, True),
        ((2, 8, 8, 512), (512, 3, 1, 256), 2, True),
        ((4, 28, 28, 64), (64, 3, 3, 16), 1, False),
        ((1, 2, 2, 512), (512, 2, 2, 8), 1, False),
    ],
)
def test_groups_are_convolved_one_by_one_where_that_is_estimated_to_be_faster(
    x: tuple[int, ...], weight: tuple[int, ...], strides: int, *, alone: bool
) -> None:
    """Many channels with strides suit it; few channels and many groups of few pixels do not."""
    groups = x[-1] // weight[-1]
    params = ConvDataGradParams(strides=strides, groups=groups, padding_before=1, data_format="channels_last")
    way = way_of(geometry(x, weight, params), np.dtype(np.float32))
    assert (way is Way.GROUPS) is alone


LISTED = (
    (Convolution((3, 5, 300, 4), (4, 5, 4, 4), params={"strides": (1, 2), "padding_before": 1}), True),
    (Convolution((2, 6, 5, 40), (4, 6, 3, 3), params={"strides": (1, 2)}), True),
    (Convolution((2, 6, 5, 60), (4, 6, 3, 3), params={"strides": (1, 2)}), False),
    (Convolution((2, 40, 16), (3, 40, 1), params={"strides": 2}), True),
)


@pytest.mark.parametrize(("made", "listed"), LISTED)
def test_additions_of_short_rows_are_listed(
    made: Convolution, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    """Also of more than 4096 products, and of longer rows with strides, with an addend or without."""
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.LIBRARY)
    for add in (False, True):
        for dtype in drawn_of("conv_data_grad", FLOATS):
            case = replace(made, add=add).case(dtype, LAYOUTS[0])
            assert has_links(geometry(case.shapes["x_like"], case.shapes["filter"], case.params)) is listed
            assert complaint(case, inputs_of(case), "optimized") == ""


AS_ROWS = (
    Convolution((2, 36, 5, 4), (60, 36, 3, 2), params={"padding_before": (1, 2), "strides": (3, 1)}),
    Convolution((1, 40, 7), (64, 40, 3), params={"strides": 2, "dilation_rate": 2}),
    Convolution((1, 64, 2, 3, 2), (70, 64, 2, 3, 1), params={"padding_before": (1, 0, 0)}),
    Convolution((1, 50, 9, 2), (128, 50, 2, 3), params={"padding_before": (4, 1), "strides": (4, 2)}),
)


@pytest.mark.parametrize("made", AS_ROWS)
def test_columns_of_few_pixels_are_rows(made: Convolution) -> None:
    """Channels last, with taps outside, strides and dilations, with an addend or without."""
    for add in (False, True):
        for dtype in drawn_of("conv_data_grad", FLOATS):
            case = replace(made, add=add).case(dtype, LAYOUTS[1])
            assert are_rows(geometry(case.shapes["x_like"], case.shapes["filter"], case.params))
            assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize(
    ("x", "weight"),
    [((1, 11, 11, 128), (128, 3, 3, 128)), ((1, 3, 3, 256), (256, 1, 1, 256)), ((1, 3, 3, 8), (32, 3, 3, 8))],
)
def test_columns_of_many_pixels_single_taps_or_few_channels_are_no_rows(
    x: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    """More columns than half of the filter, a filter of one tap, and additions of few elements do not suit it."""
    assert not are_rows(geometry(x, weight, ConvDataGradParams(data_format="channels_last")))
