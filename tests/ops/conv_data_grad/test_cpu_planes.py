"""conv_data_grad on the CPU by tiles of channels and pixels of a plane, and products of images of few pixels."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops.conv_data_grad import cpu, cpu_classes, cpu_columns, cpu_planes
from opgauge.ops.conv_data_grad.cpu_costs import Way, way_of
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution, complaints

PLANES = (
    Convolution((2, 32, 9, 11), (16, 8, 3, 3), params={"padding_before": 1, "groups": 4}),
    Convolution((3, 39, 20), (15, 13, 4), params={"groups": 3, "dilation_rate": 3, "padding_before": 11}),
    Convolution((2, 12, 3, 5, 17), (8, 6, 2, 3, 2), params={"groups": 2, "padding_before": (0, 2, 1)}),
    Convolution((1, 3, 31, 17), (300, 3, 2, 3), params={"padding_before": (1, 0)}),
    Convolution((2, 5, 4, 70), (3, 5, 5, 1), params={"padding_before": 4, "dilation_rate": (2, 1)}),
    Convolution((1, 25, 2, 3), (7, 25, 1, 3), params={"padding_before": (0, 1)}),
)
"""Channels that fill no tile, or two; more outputs than a partial product has; rows longer and shorter than vectors."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", PLANES)
@pytest.mark.parametrize("threads", [1, 2])
def test_planes_are_right_in_any_layout(
    made: Convolution, layout: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With groups and without, of one to three axes, with an addend or without; a call leaves nothing to the next."""
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.PLANES)
    monkeypatch.setattr(cpu_planes, "count", lambda *_: threads)
    assert complaints(made, layout) == {""}


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("x", "weight", "strides", "planes"),
    [
        ((4, 192, 28, 28), (192, 8, 3, 3), 1, True),
        ((4, 192, 28, 28), (192, 8, 3, 3), 2, False),
        ((4, 192, 28, 28), (192, 8, 1, 1), 1, False),
        ((4, 192, 28, 28), (192, 1, 3, 3), 1, False),
        ((1, 3, 28, 28), (16, 3, 3, 3), 1, True),
        ((1, 256, 28, 28), (256, 256, 3, 3), 1, False),
        ((1, 3, 300, 300), (64, 3, 3, 3), 1, False),
    ],
)
def test_planes_are_taken_where_they_are_estimated_to_be_faster(
    x: tuple[int, ...], weight: tuple[int, ...], strides: int, *, planes: bool
) -> None:
    """Few channels of several taps suit them, if a group of an image fits the cache; strides and one tap do not."""
    groups = x[1] // weight[1]
    found = geometry(x, weight, ConvDataGradParams(padding_before=weight[2] // 2, strides=strides, groups=groups))
    assert (way_of(found, np.dtype(np.float32)) is Way.PLANES) is planes


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize("threads", [1, 2])
def test_one_long_image_is_left_to_ways_that_threads_share(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several images, a short one, and one thread are not."""
    monkeypatch.setattr("numba.get_num_threads", lambda: threads)
    for x, alone in (((1, 24, 56, 56), True), ((2, 24, 56, 56), False), ((1, 24, 28, 28), False)):
        found = geometry(x, (x[1], x[1], 3, 3), ConvDataGradParams(padding_before=1))
        assert (way_of(found, np.dtype(np.float32)) is Way.PLANES) is not (alone and threads > 1), x


FEW = (
    Convolution((3, 20, 2, 3), (24, 20, 1, 1)),
    Convolution((3, 12, 2, 2), (30, 12, 2, 2), params={"strides": 2, "padding_before": 1}),
    Convolution((4, 12, 4, 4), (8, 6, 4, 3), params={"groups": 2, "strides": 2, "padding_before": (0, 1)}),
    Convolution((3, 16, 3, 3), (24, 16, 3, 3)),
)


@pytest.mark.parametrize("made", FEW)
@pytest.mark.parametrize("apart", [True, False])
def test_images_of_few_pixels_have_a_product_each_or_share_one(
    made: Convolution, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    """Either way is right, of one pixel and of several, with groups, strides and an addend."""
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.LIBRARY)
    monkeypatch.setattr(cpu_columns, "_are_apart", lambda *_: apart)
    assert complaints(made, LAYOUTS[0]) == {""}


@pytest.mark.parametrize("width", [1, 2, 9, 40])
@pytest.mark.parametrize("few", [0, cpu_classes.FEW_COPIED])
def test_two_classes_of_columns_are_woven_together(width: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even and odd columns, one more or as many, with an addend or without, whoever copies the filter."""
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.CLASSES)
    monkeypatch.setattr(cpu_classes, "FEW_COPIED", few)
    made = Convolution((2, 3, 5, width), (4, 3, 3, 3), params={"strides": 2, "padding_before": 1})
    assert complaints(made, LAYOUTS[0]) == {""}


@pytest.mark.parametrize(
    ("small", "shape", "images", "pixels", "dtype", "apart"),
    [
        (True, (1, 192, 1024), 8, 4, "float32", True),
        (True, (1, 512, 512), 8, 4, "float32", False),
        (False, (1, 192, 1024), 8, 4, "float32", False),
        (False, (8, 1024, 24), 8, 4, "float32", True),
        (False, (8, 64, 96), 8, 4, "float32", True),
        (True, (1, 1536, 1024), 3, 1, "float32", True),
        (True, (1, 1536, 1024), 8, 1, "float32", False),
        (True, (1, 192, 192), 3, 1, "float32", False),
        (True, (1, 1536, 1024), 3, 1, "float64", False),
    ],
)
def test_small_products_and_few_columns_of_a_large_filter_are_apart(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int, int],
    images: int,
    pixels: int,
    dtype: str,
    *,
    small: bool,
    apart: bool,
) -> None:
    """BLAS packs the filter for others."""
    monkeypatch.setattr(cpu_columns, "has_small_products", lambda: small)
    rows = np.empty(shape, dtype)
    assert cpu_columns._are_apart(rows[0].nbytes, images, pixels, rows) is apart
