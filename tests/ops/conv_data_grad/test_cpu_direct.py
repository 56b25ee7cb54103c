"""conv_data_grad's multiply-adds tap by tap on the CPU, on several threads."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from opgauge.ops import FLOATS, ShapeError, dtype_info, find_kernel
from opgauge.ops.conv_data_grad import cpu, cpu_columns, cpu_rows
from opgauge.ops.conv_data_grad.cpu_columns import FEW_PIXELS, images_at_once, is_strided_pixels
from opgauge.ops.conv_data_grad.cpu_costs import Way, way_of
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, ConvGeometry, geometry
from tests.draws import drawn_of
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution, complaints

GROUPED = (
    Convolution((2, 9, 7, 9), (9, 1, 3, 3), add=True, params={"padding_before": 1, "groups": 9}),
    Convolution((2, 16, 8, 7), (24, 2, 3, 2), params={"strides": (2, 1), "dilation_rate": (1, 2), "groups": 8}),
    Convolution((1, 8, 4, 5, 6), (8, 1, 3, 1, 3), params={"padding_before": 1, "groups": 8, "strides": (2, 1, 1)}),
    Convolution((2, 9, 7, 6), (9, 1, 3, 2), params={"padding_before": (3, 0), "dilation_rate": (2, 1), "groups": 9}),
    Convolution((1, 8, 4, 5, 6), (16, 1, 2, 3, 3), add=True, params={"padding_before": (1, 0, 2), "groups": 8}),
    Convolution((2, 16, 3, 30), (16, 1, 1, 1), add=True, params={"groups": 16}),
    Convolution((2, 45, 3, 2), (45, 1, 3, 3), add=True, params={"padding_before": 1, "groups": 45, "strides": 2}),
    Convolution((1, 70, 4, 3), (105, 2, 2, 2), params={"dilation_rate": 2, "padding_before": 1, "groups": 35}),
    Convolution((2, 54, 3, 13), (36, 3, 3, 3), add=True, params={"padding_before": 1, "groups": 18}),
    Convolution((1, 20, 4, 19), (20, 1, 2, 3), params={"strides": (1, 2), "dilation_rate": (1, 3), "groups": 20}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("taps", "band_bytes"), [(True, cpu_rows.BAND_BYTES), (True, 0), (False, 0)])
@pytest.mark.parametrize("turned", [False, True])
def test_threads_share_no_scratch(
    monkeypatch: pytest.MonkeyPatch, layout: str, band_bytes: int, *, taps: bool, turned: bool
) -> None:
    """Small groups are right on two threads too, in both layouts: tap by tap, in one band or in several, or by BLAS.

    Tap by tap, also through copies in the other layout.
    """
    way = (Way.TURNED if turned else Way.DIRECT) if taps else Way.LIBRARY
    monkeypatch.setattr(cpu, "way_of", lambda *_, **__: way)
    monkeypatch.setattr(cpu_rows, "count", lambda *_: 2)
    monkeypatch.setattr(cpu_rows, "BAND_BYTES", band_bytes)
    for made, dtype in product(GROUPED, drawn_of("conv_data_grad", ("float32", "float64", "bfloat16"))):
        case = made.case(dtype, layout)
        assert complaint(case, inputs_of(case), "optimized") == ""


SCALED = (
    Convolution((2, 4, 9, 10), (4, 1, 1, 1), params={"groups": 4, "dilation_rate": 2}),
    Convolution((1, 3, 101), (3, 1, 1), add=True, params={"groups": 3}),
    Convolution((3, 300, 7), (300, 1, 1), add=True, params={"groups": 300}),
    Convolution((2, 4, 9, 10), (8, 1, 1, 1), params={"groups": 4}),
    Convolution((2, 4, 9, 10), (4, 1, 1, 1), params={"groups": 4, "strides": (2, 1)}),
    Convolution((1, 2, 5, 6, 7), (2, 1, 1, 1, 1), add=True, params={"groups": 2}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", SCALED)
def test_channels_times_numbers(made: Convolution, layout: str) -> None:
    """Pixels are put together where channels are last, as many as divide them; more channels, or strides, are none."""
    for dtype in drawn_of("conv_data_grad", FLOATS):
        case = made.case(dtype, layout)
        inputs = inputs_of(case)
        assert complaint(case, inputs, "optimized") == ""
        kernel = find_kernel(case.op, "optimized", "cpu", dtype)
        out = {"dx": np.empty(case.shapes["x_like"], dtype_info(dtype).numpy)}
        values = {name: array.copy() for name, array in inputs.values.items()}
        call = kernel.bind(values, case.params, out, None)
        values["filter"] *= values["filter"].dtype.type(2)
        call()
        plain = {"dx": np.empty_like(out["dx"])}
        kernel.bind(values, case.params, plain, None)()
        assert np.array_equal(out["dx"], plain["dx"]), "the filter was read when the kernel was bound"


THIN = (
    Convolution((3, 1, 9, 11), (1, 1, 3, 2), add=True, params={"padding_before": 1}),
    Convolution((3, 1, 17, 19), (1, 1, 2, 2), params={"strides": (2, 2)}),
    Convolution((2, 3, 12, 8), (3, 3, 3, 3), add=True, params={"padding_before": (2, 1), "dilation_rate": (2, 1)}),
    Convolution((2, 2, 40), (4, 2, 5), params={"padding_before": 2}),
    Convolution((2, 1, 5, 6, 7), (9, 1, 2, 3, 1), params={"padding_before": (1, 0, 0)}),
    Convolution((2, 1, 6, 9), (1, 1, 1, 1), add=True),
    Convolution((2, 1, 7, 8), (1, 1, 6, 8)),
)


CUT = (
    Convolution((2, 6, 1, 1), (4, 6, 3, 3), add=True, params={"padding_before": 1}),
    Convolution((2, 6, 1, 3), (4, 6, 5, 3), params={"padding_before": (2, 1), "strides": 2}),
    Convolution((2, 8, 1, 2), (8, 2, 5, 9), params={"padding_before": (2, 8), "dilation_rate": (1, 2), "groups": 4}),
    Convolution((3, 9, 1, 1, 2), (9, 1, 5, 5, 3), params={"padding_before": (2, 4, 2), "groups": 9}),
    Convolution((2, 3, 2), (5, 3, 9), params={"padding_before": 13, "dilation_rate": 3, "strides": 4}),
)


ONE_PIXEL = (
    Convolution((8, 40, 1, 1), (6, 40, 1, 1), params={"strides": 2}),
    Convolution((5, 12, 1), (8, 3, 1), add=True, params={"groups": 4}),
    Convolution((5, 12, 1, 1, 1), (12, 1, 1, 1, 1), params={"groups": 12, "strides": (1, 2, 3)}),
    Convolution((3, 7, 1, 5), (4, 7, 1, 1), add=True, params={"strides": 2}),
    Convolution((3, 7, 1, 5), (4, 7, 1, 2), params={"strides": (2, 1)}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", [*THIN, *CUT, *ONE_PIXEL])
def test_few_channels_and_filters_larger_than_their_image(made: Convolution, layout: str) -> None:
    """One channel or one pixel, the same in both layouts, or few, without groups; taps outside, at any padding."""
    for dtype in drawn_of("conv_data_grad", FLOATS):
        case = made.case(dtype, layout)
        assert complaint(case, inputs_of(case), "optimized") == ""


def test_taps_that_reach_the_image() -> None:
    """As counted one by one, but that the padding stays positive."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        size, taps, stride, dilation = (int(rng.integers(1, end)) for end in (6, 8, 4, 4))
        padding = int(rng.integers(0, dilation * (taps - 1) + 1))
        params = ConvDataGradParams(strides=stride, padding_before=padding, dilation_rate=dilation)
        try:
            found = geometry((1, 1, size), (1, 1, taps), params)
        except ShapeError:
            continue
        places = [
            [tap * dilation - padding + output * stride for output in range(found.out_size[0])] for tap in range(taps)
        ]
        inside = [tap for tap, reached in enumerate(places) if any(0 <= place < size for place in reached)]
        (kept,) = cpu._reached_taps(found)
        if inside:
            assert (kept.start, kept.stop) == (min(inside[0], padding // dilation), inside[-1] + 1)


IN_STEPS = (
    Convolution((5, 9, 7, 8), (6, 9, 3, 2), add=True, params={"padding_before": 1, "strides": (2, 3)}),
    Convolution((5, 16, 3, 6, 5), (12, 8, 2, 3, 1), params={"strides": (2, 1, 2), "dilation_rate": 2, "groups": 2}),
    Convolution((5, 60, 3, 4), (24, 20, 1, 1), add=True, params={"groups": 3}),
)


@pytest.mark.parametrize("at_once", [1, 2, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_of_a_batch_are_computed_in_steps(monkeypatch: pytest.MonkeyPatch, layout: str, at_once: int) -> None:
    """Five images, one, two or all at a time, the last step shorter."""
    monkeypatch.setattr(cpu_columns, "images_at_once", lambda *_: (at_once, 1))
    monkeypatch.setattr(cpu, "way_of", lambda *_, **__: Way.LIBRARY)
    for made in IN_STEPS:
        for dtype in ("float32", "float16"):
            case = made.case(dtype, layout)
            assert complaint(case, inputs_of(case), "optimized") == ""


def test_small_images_share_steps_and_large_ones_do_not() -> None:
    """A step has as many images as fit its bytes, at least one and no more than there are."""
    for x, expected in (((32, 32, 1, 1), 32), ((64, 32, 8, 8), 9), ((3, 64, 64, 64), 1)):
        found = geometry(x, (4, x[1], 3, 3), ConvDataGradParams(strides=2, padding_before=1))
        at_once, _ = images_at_once(found, np.dtype(np.float32))
        assert at_once == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_of_few_pixels_share_a_product(layout: str) -> None:
    """1x1 and strided filters, groups and addends, images of one pixel and of as many as no longer share one."""
    for pixels in (1, 3, FEW_PIXELS):
        for groups, add, params in ((1, False, {}), (2, True, {}), (2, False, {"strides": 2, "padding_before": 1})):
            kernel = (2, 2) if params else (1, 1)
            given = {"groups": groups, **params}
            made = Convolution((5, 8, 1, pixels), (6, 8 // groups, *kernel), add=add, params=given)
            for dtype in drawn_of("conv_data_grad", ("float32", "float64", "bfloat16")):
                case = made.case(dtype, layout)
                assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize(("pixels", "is_apart"), [(1, True), (3, True), (4, False)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_few_pixels_are_products_of_their_own(
    dtype: str, pixels: int, monkeypatch: pytest.MonkeyPatch, *, is_apart: bool
) -> None:
    """BLAS reads the filter of one row as it lies, and copies it for several."""
    vectors = set()

    def counted(given: Any, *others: Any, **options: Any) -> Any:
        vectors.add(given.ndim == 1)
        return np.matmul(given, *others, **options)

    monkeypatch.setattr(cpu_columns, "matmul", counted)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.LIBRARY)
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    case = Convolution((1, 260, pixels), (260, 260, 1), add=True, params={}).case(dtype, LAYOUTS[1])
    assert complaint(case, inputs_of(case), "optimized") == ""
    assert vectors == {is_apart}


def test_grouped_pointwise_channels_last() -> None:
    """1x1 convolutions with few groups and channels last are one product a group, with the addend or without."""
    for add in (False, True):
        made = Convolution((2, 30, 5, 6), (24, 10, 1, 1), add=add, params={"groups": 3})
        for dtype in drawn_of("conv_data_grad", ("float32", "float16", "float64")):
            case = made.case(dtype, "channels_last")
            assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize(
    ("x", "weight", "params"),
    [
        ((2, 24, 7, 6), (20, 24, 1, 1), {"strides": 2}),
        ((3, 12, 5), (8, 6, 1), {"strides": 3, "groups": 2}),
        ((2, 6, 3, 4, 5), (4, 6, 1, 1, 1), {"strides": (2, 1, 3)}),
        ((1, 5, 9, 9), (40, 5, 1, 1), {"strides": (9, 4)}),
    ],
)
def test_strided_pixels_channels_last_are_products(
    x: tuple[int, ...], weight: tuple[int, ...], params: dict[str, object]
) -> None:
    """1x1 filters with strides: a product of the pixels of dy, spread over dx, with the addend or without."""
    for add in (False, True):
        made = Convolution(x, weight, add=add, params=params)
        for dtype in drawn_of("conv_data_grad", ("float32", "float64", "bfloat16")):
            case = made.case(dtype, "channels_last")
            assert is_strided_pixels(geometry(case.shapes["x_like"], case.shapes["filter"], case.params))
            assert complaint(case, inputs_of(case), "optimized") == ""


STRIDED = (
    Convolution((2, 40, 9, 8), (24, 40, 3, 3), params={"strides": 2, "padding_before": 1}),
    Convolution((2, 33, 8, 7), (20, 33, 3, 2), params={"strides": (2, 3)}),
    Convolution((1, 18, 13), (30, 18, 4), params={"strides": 3, "padding_before": 3, "dilation_rate": 2}),
    Convolution((2, 17, 11, 10), (9, 17, 2, 2), params={"strides": (3, 2), "dilation_rate": (1, 2)}),
    Convolution((2, 16, 4, 5, 6), (12, 16, 3, 1, 3), params={"strides": (2, 1, 2), "padding_before": (1, 0, 1)}),
    Convolution((1, 16, 12, 12), (16, 16, 1, 2), params={"strides": 4}),
    Convolution((2, 1, 9, 12), (1, 1, 4, 5), params={"strides": (2, 4)}),
    Convolution((2, 24, 9, 8), (16, 6, 3, 3), params={"padding_before": 1, "groups": 4, "strides": 2}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", STRIDED)
@pytest.mark.parametrize("tiles_ns", [0.0, inf])
def test_strided_convolutions_by_classes(
    made: Convolution, layout: str, tiles_ns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd sizes, dilations, classes of one tap and without any, dy larger and smaller than a class; with an addend.

    By tiles and by planes.
    """
    monkeypatch.setattr(cpu, "tiles_ns", lambda *_: tiles_ns)
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.CLASSES)
    assert complaints(made, layout) == {""}


def three_by_three(
    images: int, pixels: int, channels: int, outs: int, *, last: bool, strides: int = 1
) -> tuple[ConvGeometry, tuple[int, ...], tuple[int, ...]]:
    """A convolution of square images with a padded 3x3 filter; the shapes of dx and of the filter."""
    x: tuple[int, ...] = (images, channels, pixels, pixels)
    taps: tuple[int, ...] = (outs, channels, 3, 3)
    if last:
        x, taps = ((one[0], *one[2:], one[1]) for one in (x, taps))
    params = ConvDataGradParams(
        strides=strides, padding_before=1, data_format="channels_last" if last else "channels_first"
    )
    return geometry(x, taps, params), x, taps


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("pixels", "channels", "outs", "last", "by_classes"),
    [(56, 64, 64, True, True), (56, 64, 64, False, True), (9, 4, 3, True, False), (5, 100, 4, False, False)],
)
def test_classes_are_used_where_they_are_estimated_to_be_faster(
    pixels: int, channels: int, outs: int, *, last: bool, by_classes: bool
) -> None:
    """Channels that fill tiles suit them, and rows that are not short."""
    found, _, _ = three_by_three(4, pixels, channels, outs, last=last, strides=2)
    assert (way_of(found, np.dtype(np.float32)) is Way.CLASSES) is by_classes


@pytest.mark.parametrize("last", [False, True])
def test_filters_without_taps_are_refused(last: bool) -> None:
    """A filter of length zero along an axis is a ShapeError that names the filter."""
    x, weight = ((2, 5, 3, 3), (4, 0, 3, 3)) if last else ((2, 3, 5, 3), (4, 3, 0, 3))
    params = ConvDataGradParams(data_format="channels_last" if last else "channels_first")
    with pytest.raises(ShapeError, match="no taps"):
        geometry(x, weight, params)


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("pixels", "channels", "outs", "last", "tiled"),
    [(3, 96, 768, True, True), (2, 96, 768, False, False), (28, 128, 128, True, True), (56, 64, 3, True, True)],
)
def test_tiles_are_used_where_they_are_estimated_to_be_faster(
    pixels: int, channels: int, outs: int, *, last: bool, tiled: bool
) -> None:
    """Few pixels suit tiles where channels are last, and BLAS where they are first; many suit tiles."""
    found, _, _ = three_by_three(1, pixels, channels, outs, last=last)
    assert (way_of(found, np.dtype(np.float32)) is Way.TILES) is tiled


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("x", "filter_shape", "strides", "by_taps"),
    [
        ((2, 128, 56, 56), (128, 1, 3, 3), 1, True),
        ((2, 256, 4, 4), (512, 4, 3, 3), 1, False),
        ((1, 16, 28, 20, 3), (256, 1, 3, 4, 2), 2, False),
        ((8, 256, 5, 5), (32, 8, 3, 7), 1, False),
        ((16, 192, 14), (512, 3, 1), 1, False),
    ],
)
def test_taps_are_used_where_they_are_estimated_to_be_faster(
    x: tuple[int, ...], filter_shape: tuple[int, ...], strides: int, *, by_taps: bool
) -> None:
    """Depthwise images suit them; groups of several channels or outputs suit tiles or BLAS."""
    padding = tuple((taps - 1) // 2 for taps in filter_shape[2:])
    groups = x[1] // filter_shape[1]
    params = ConvDataGradParams(padding_before=padding, strides=strides, groups=groups)
    way = way_of(geometry(x, filter_shape, params), np.dtype(np.float32))
    assert (way is Way.DIRECT) is by_taps


@pytest.mark.parametrize(("pixels", "turns"), [((2,), True), ((5, 8), True), ((4, 300), False)])
def test_depthwise_of_few_pixels_is_computed_along_channels(pixels: tuple[int, ...], *, turns: bool) -> None:
    """Channels first, rows of few pixels are no vectors; many channels of another layout are."""
    params = ConvDataGradParams(padding_before=1, strides=2, groups=256)
    found = geometry((1, 256, *pixels), (256, 1, *(3,) * len(pixels)), params)
    assert (way_of(found, np.dtype(np.float32)) is Way.TURNED) is turns
