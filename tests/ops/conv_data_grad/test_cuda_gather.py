"""How conv_data_grad's gathering kernels are laid out, walked in NumPy: no GPU takes part."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from opgauge.harness.worker.verify import expect
from opgauge.ops.conv_data_grad.cuda_gather import candidates, layouts
from opgauge.ops.conv_data_grad.gather_layout import PATCH_STEP, GatherLayout
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, ConvGeometry, geometry
from opgauge.ops.conv_data_grad.residue_classes import AXES, MOST_PASSES, MOST_TAPS, ClassTiles
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import FIXED, Convolution, convolutions

SHARED_BYTES, PROCESSORS = 227 * 1024, 132


def laid_out(layout: GatherLayout, dy: Any) -> Any:
    """dy (N, Co, ...) as (lines, Co), zeros between images and rows."""
    found, axes = layout.found, layout.axes
    shape = tuple(axis.pitch for axis in axes)
    padded = np.zeros((found.batch, *shape, found.out_channels))
    inner = tuple(slice(axis.margin, None) for axis in axes)
    padded[(slice(None), *inner)] = np.moveaxis(dy.reshape(*dy.shape[:2], *(axis.out for axis in axes)), 1, -1)
    lines = np.zeros((layout.lines, found.out_channels))
    rows = padded.reshape(-1, found.out_channels)[: layout.lines]
    lines[: len(rows)] = rows
    return lines


def entry(layout: GatherLayout, residue: tuple[int, ...], reach: tuple[int, ...]) -> int | None:
    """Which tap of the filter carries a class that far."""
    found = 0
    for axis, r, e in zip(layout.axes, residue, reach, strict=True):
        tap, rest = divmod(r + axis.padding - axis.stride * e, axis.dilation)
        if rest or not 0 <= tap < axis.kernel:
            return None
        found = found * axis.kernel + tap
    return found


def walked(layout: GatherLayout, dy: Any, weight: Any) -> Any:
    """dx as the kernels find it: tile by tile, class by class, tap by tap, each within its patch."""
    found, axes = layout.found, layout.axes
    lines, dx = laid_out(layout, dy), np.zeros((found.batch, found.channels, *(axis.full for axis in axes)))
    flat = weight.reshape(found.groups, found.out_channels // found.groups, layout.per_group, -1)
    for part in layout.parts:
        classes = product(*(axis.residues for axis in axes)) if layout.merged else [part.residue]
        for residue, (first, count) in product(classes, tiles(layout, part)):
            columns = np.arange(first, first + count)
            base = layout.line(part, columns)
            total = np.zeros((count, found.groups, layout.per_group))
            for reach in product(*part.reaches):
                tap = entry(layout, residue, reach)
                source = base + layout.distance(reach)
                start = base[0] + layout.distance(tuple(reaches[-1] for reaches in part.reaches))
                assert source.min() >= start
                assert source.max() < min(start // PATCH_STEP * PATCH_STEP + layout.patch, layout.lines)
                if tap is not None:
                    given_lines = lines[source].reshape(count, found.groups, -1)
                    total += np.einsum("pgo,goc->pgc", given_lines, flat[..., tap])
            place(layout, part, residue, columns, total.reshape(count, -1), dx)
    return dx.reshape(found.batch, found.channels, *found.size)


def tiles(layout: GatherLayout, part: ClassTiles) -> list[tuple[int, int]]:
    """First column and number of columns of each tile of a part."""
    width, units = layout.tile.columns, part.columns // part.unit
    starts = [(unit * part.unit, offset) for unit in range(units) for offset in range(0, part.unit, width)]
    assert len(starts) == part.tiles
    return [(start + offset, min(part.unit - offset, width)) for start, offset in starts]


def place(layout: GatherLayout, part: ClassTiles, residue: tuple[int, ...], columns: Any, values: Any, dx: Any) -> None:
    """Results of a class to where they belong, once each; what is beyond dx is dropped."""
    *_, image = at = list(np.unravel_index(columns, (layout.found.batch, *part.size)))[::-1]
    spatial = [a * axis.stride + r for a, axis, r in zip(at[-2::-1], layout.axes, residue, strict=True)]
    valid = np.all([s < axis.full for s, axis in zip(spatial, layout.axes, strict=True)], axis=0)
    target = (image[valid], slice(None), *(s[valid] for s in spatial))
    assert not dx[target].any()
    dx[target] = values[valid]


def check(made: Convolution) -> None:
    """All layouts of a convolution give what the reference gives."""
    case = made.case("float64")
    inputs = inputs_of(case)
    found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
    expected = expect(case, inputs).values["dx"]
    if made.add:
        expected = expected - inputs.wide["add_to_output"]
    ways = {replace(layout, splits=1) for layout in candidates(found, 4) if layout.fits}
    for layout in ways:
        got = walked(layout, inputs.wide["dy"], inputs.wide["filter"])
        assert np.allclose(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("made", FIXED)
def test_walk_is_the_reference(made: Convolution) -> None:
    """Margins, distances, classes and entries lead every tap to the pixel of dy that it belongs to."""
    check(made)


@given(convolutions())
@settings(max_examples=40)
def test_random_walks(made: Convolution) -> None:
    """The same for random sizes, strides, dilations, paddings and groups; no patch is left."""
    check(made)


RESNET: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((32, 64, 56, 56), (64, 64, 3, 3), {"padding_before": 1}),
    ((32, 512, 7, 7), (512, 512, 3, 3), {"padding_before": 1}),
    ((32, 128, 56, 56), (128, 128, 3, 3), {"padding_before": 1, "strides": 2}),
    ((32, 3, 224, 224), (64, 3, 7, 7), {"padding_before": 3, "strides": 2}),
    ((32, 256, 56, 56), (512, 256, 1, 1), {"strides": 2}),
    ((2, 64, 56, 56), (64, 64, 3, 3), {"padding_before": 1}),
)


def resnet(number: int) -> ConvGeometry:
    """One of ResNet-50's convolutions."""
    x, weight, params = RESNET[number]
    return geometry(x, weight, ConvDataGradParams(**params))


@pytest.mark.parametrize("number", range(len(RESNET)))
@pytest.mark.parametrize("itemsize", [2, 4])
def test_resnet_fits(number: int, itemsize: int) -> None:
    """Every convolution of ResNet-50 has a layout within shared memory and the kernels' tables, no split empty."""
    found = layouts(resnet(number), itemsize, SHARED_BYTES, PROCESSORS)
    assert found
    for layout in found:
        assert layout.shared_bytes <= SHARED_BYTES
        assert len(layout.parts) <= MOST_PASSES
        assert max(part.taps for part in layout.parts) <= MOST_TAPS
        assert (layout.splits - 1) * layout.share < layout.chunks <= layout.splits * layout.share
        assert len(layout.struct()["pass"]) == MOST_PASSES


def test_few_tiles_share_the_depth() -> None:
    """Where tiles leave the machine idle several blocks work on each; where there are plenty, one."""
    assert layouts(resnet(1), 4, SHARED_BYTES, PROCESSORS)[0].splits > 1
    assert layouts(resnet(0), 4, SHARED_BYTES, PROCESSORS)[0].splits == 1


def test_few_channels_share_rows() -> None:
    """The stem has three channels: its four classes are twelve rows of one product, with the taps of all."""
    best = layouts(resnet(3), 4, SHARED_BYTES, PROCESSORS)[0]
    assert best.merged
    assert (best.rows, best.parts[0].taps, prod(best.classes)) == (12, 16, 4)
    assert len(best.axes) == AXES


def test_strides_never_multiply_structural_zeros() -> None:
    """With a stride of two the nine taps of 3 x 3 fall to four classes, none twice."""
    best = layouts(resnet(2), 4, SHARED_BYTES, PROCESSORS)[0]
    assert sorted(part.taps for part in best.parts) == [1, 2, 2, 4]
