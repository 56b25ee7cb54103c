"""conv_data_grad on the CPU by products of few outputs with the filter as it lies."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops.conv_data_grad import cpu, cpu_few
from opgauge.ops.conv_data_grad.cpu_costs import Way, way_of
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution, complaints

FEW = (
    Convolution((2, 40, 3, 2), (9, 40, 3, 2), params={"padding_before": 1, "strides": 2}),
    Convolution((3, 33, 4), (31, 33, 3), params={"padding_before": 1}),
    Convolution((1, 6, 5, 7), (4, 6, 2, 3), params={"dilation_rate": (3, 2), "strides": (1, 3)}),
    Convolution((5, 270, 1, 1), (8, 270, 1, 1)),
    Convolution((1, 3, 2, 2, 3), (2, 3, 3, 3, 1), params={"padding_before": (1, 2, 0)}),
)
"""An odd number of outputs and an even one; depths that are no multiple of four; several spans; pixels without taps."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", FEW)
@pytest.mark.parametrize("threads", [1, 2])
def test_few_outputs_are_right_in_any_layout(
    made: Convolution, layout: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With strides, margins and dilation, of one to three axes, with an addend or without."""
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu, "_prefers_vectors", lambda *_: False)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.FEW)
    monkeypatch.setattr(cpu_few, "threads_for", lambda *_: threads)
    assert complaints(made, layout) == {""}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_groups_have_products_of_their_own(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels first, with an addend."""
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.FEW)
    case = Convolution((3, 12, 3, 2), (15, 4, 3, 1), True, {"padding_before": 1, "groups": 3}).case(
        dtype, "channels_first"
    )
    assert not complaint(case, inputs_of(case), "optimized")


@pytest.mark.parametrize(
    ("x", "layout", "groups", "few"),
    [
        ((2, 320, 3, 3, 1), "channels_first", 1, True),
        ((2, 3, 3, 1, 320), "channels_last", 1, True),
        ((8, 320, 9, 9, 9), "channels_first", 1, False),
        ((2, 3, 3, 1, 320), "channels_last", 5, False),
    ],
)
def test_few_outputs_of_many_channels_read_the_filter_as_it_lies(
    x: tuple[int, ...], layout: str, groups: int, *, few: bool
) -> None:
    """Not many outputs, nor groups whose channels are last."""
    inner = 320 // groups
    shape = (320, inner, 3, 3, 3) if layout == "channels_first" else (320, 3, 3, 3, inner)
    params = ConvDataGradParams((2, 2, 2), (0, 0, 1), 1, groups, layout)  # type: ignore[arg-type]
    assert (way_of(geometry(x, shape, params), np.dtype(np.float64)) is Way.FEW) is few
