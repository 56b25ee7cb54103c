"""deformable_conv and its gradient on the CPU for images of few pixels, whose samples are multiplied by BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opgauge.ops import FLOATS
from opgauge.ops.deformable_conv import cpu, cpu_few
from opgauge.ops.deformable_conv.cpu_few import MOST_PIXELS, share_products
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of

Shape = tuple[int, ...]
FEW: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((3, 12, 2, 3), (10, 12, 2, 3), {}),
    ((2, 12, 3, 3), (8, 6, 3, 3), {"paddings": (1, 1), "groups": 2, "deformable_groups": 3}),
    ((1, 9, 4, 5), (6, 3, 2, 2), {"strides": (2, 1), "groups": 3}),
    ((4, 8, 1, 1), (5, 8, 3, 3), {"paddings": (1, 1), "deformable_groups": 4}),
)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("x", "weight", "params"), FEW)
@pytest.mark.parametrize("threads", [1, 2])
def test_samples_of_all_images_are_multiplied_at_once(
    monkeypatch: pytest.MonkeyPatch, threads: int, x: Shape, weight: Shape, params: dict[str, Any], *, masked: bool
) -> None:
    """Groups of both kinds, several images and pixels, with a mask or without, by BLAS and by tiles."""
    monkeypatch.setattr(cpu, "count", lambda *_: threads)
    found = geometry(x, weight, DeformableConvParams(**params))
    shapes = {"x": x, "filter": weight} | ({"mask": found.mask_shape} if masked else {})
    for together in (True, False):
        monkeypatch.setattr(cpu, "share_products", lambda *_, together=together: together)
        for dtype in drawn_of("deformable_conv", FLOATS):
            case = case_of("deformable_conv", shapes, dtype, **params)
            assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize(("x", "weight", "params"), FEW)
def test_pixels_are_multiplied_one_by_one(
    monkeypatch: pytest.MonkeyPatch, x: Shape, weight: Shape, params: dict[str, Any]
) -> None:
    """As two or three pixels of a large filter are, in the order of images, groups and pixels."""
    monkeypatch.setattr(cpu, "share_products", lambda *_: True)
    monkeypatch.setattr(cpu_few, "FEW_COLUMNS", 100)
    monkeypatch.setattr(cpu_few, "LEAST_FILTER", 0)
    for dtype in drawn_of("deformable_conv", FLOATS):
        case = case_of("deformable_conv", {"x": x, "filter": weight}, dtype, **params)
        assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize("wanted", [("x", "offset", "mask", "filter"), ("filter",), ("offset",), ("x", "filter")])
@pytest.mark.parametrize(("x", "weight", "params"), FEW)
@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_all_images_are_multiplied_at_once(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    x: Shape,
    weight: Shape,
    params: dict[str, Any],
    wanted: tuple[str, ...],
) -> None:
    """The filter's gradient alone needs no products of the filter, the others alone none of the samples."""
    monkeypatch.setattr(cpu, "count", lambda *_: threads)
    monkeypatch.setattr(cpu, "share_products", lambda *_: True)
    shapes = {"x": x, "filter": weight, "mask": geometry(x, weight, DeformableConvParams(**params)).mask_shape}
    needs = {f"need_{name}": name in wanted for name in ("x", "offset", "mask", "filter")}
    for dtype in drawn_of("deformable_conv_grad", FLOATS):
        case = case_of("deformable_conv_grad", shapes, dtype, **needs, **params)
        assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize(
    ("x", "weight", "together"),
    [
        ((1, 256, 3, 3), (256, 256, 3, 3), True),
        ((16, 512, 5, 5), (100, 512, 5, 5), True),
        ((64, 64, 5, 5), (32, 64, 3, 3), False),
        ((1, 64, 9, 9), (4096, 64, 1, 1), False),
    ],
)
def test_products_are_shared_where_that_is_estimated_to_be_faster(x: Shape, weight: Shape, *, together: bool) -> None:
    """A large filter and few pixels suit it; many images, or pixels, do not."""
    found = geometry(x, weight, DeformableConvParams())
    assert (found.pixels <= MOST_PIXELS) is (found.pixels != 81)
    assert share_products(found, np.dtype(np.float32)) is together
