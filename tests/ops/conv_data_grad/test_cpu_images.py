"""conv_data_grad on the CPU by tiles of images, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops.conv_data_grad import cpu, cpu_images
from opgauge.ops.conv_data_grad.cpu_costs import Way, way_of
from opgauge.ops.conv_data_grad.cpu_pack import TURNED_TAPS
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution, complaints

IMAGES = (
    Convolution((9, 40, 3, 4), (5, 40, 5, 5), params={"padding_before": 2}),
    Convolution((3, 33, 4), (300, 33, 3), params={"padding_before": 1}),
    Convolution((2, 7, 7), (6, 7, TURNED_TAPS), params={"padding_before": (3,), "strides": 2}),
    Convolution((17, 6, 5, 7), (4, 6, 1, 1), params={"strides": (3, 2)}),
    Convolution((1, 70, 2, 2, 3), (8, 70, 3, 1, 2), params={"padding_before": (1, 0, 1)}),
    Convolution(
        (8, 4, 9, 9), (3, 4, 3, 4), params={"dilation_rate": (2, 3), "padding_before": (1, 4), "strides": (1, 2)}
    ),
)
"""More taps than pixels; more outputs than a partial product has; pixels that no tap reaches; no whole tiles."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", IMAGES)
@pytest.mark.parametrize("threads", [1, 2])
def test_images_are_right_in_any_layout(
    made: Convolution, layout: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With strides, margins and dilation, of one to three axes, with an addend or without."""
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.IMAGES)
    monkeypatch.setattr(cpu_images, "threads_for", lambda *_: threads)
    assert complaints(made, layout) == {""}


@pytest.mark.parametrize("made", IMAGES)
def test_the_estimate_counts_the_taps_that_are_listed(made: Convolution) -> None:
    """Those of all pixels together."""
    case = made.case("float32", "channels_first")
    found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
    axes = found.size, found.out_size, found.kernel, found.strides, found.padding, found.dilation
    counted = np.prod([*map(cpu_images._reached, *axes)])
    order, ends, runs = cpu_images.runs_of(found)
    assert runs[:, 2].sum() == counted
    assert sorted(order) == [*range(np.prod(found.kernel))]
    assert len(ends) == np.prod(found.size) + 1
    assert (np.diff(ends) >= 1).all()


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("x", "taps", "images"),
    [
        ((8, 256, 4, 4), 5, True),
        ((32, 64, 4, 4), 3, True),
        ((1, 64, 4, 4), 3, False),
        ((8, 64, 32, 32), 3, False),
    ],
)
def test_images_are_taken_where_most_taps_read_margins(x: tuple[int, ...], taps: int, *, images: bool) -> None:
    """Not for one image, whose tile would be idle for the most part, nor for large ones."""
    found = geometry(x, (x[1], x[1], taps, taps), ConvDataGradParams(padding_before=taps // 2))
    assert (way_of(found, np.dtype(np.float32)) is Way.IMAGES) is images
