"""How `convolve_patches` is laid out, walked in NumPy: no GPU takes part; on one, its results are right."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from opgauge.harness.case.case import InputSpec
from opgauge.harness.worker.verify import expect
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.conv_data_grad import cuda, patches
from opgauge.ops.conv_data_grad.gather_layout import ALIGNMENT, GatherLayout
from opgauge.ops.conv_data_grad.op import ConvGeometry, geometry
from opgauge.ops.conv_data_grad.pack_channels import pack_channels, packed, packed_bytes
from opgauge.ops.conv_data_grad.patches import GROUP_LINES, LINES, MOST_CLASSES, PatchLayout, patch_layout
from tests.emulation.emulator import DeviceArray, emulated
from tests.ops.attempts import complaint as judged
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import FIXED, LAYOUTS, Convolution, convolutions

H200 = Gpu(132, 90, 227 << 10)


def patch_of(plan: Any, pixels: Any, dy: Any, corner: tuple[int, int, int]) -> Any:
    """Lines of the box of dy (N, H, W, Co) that a tile at `corner` loads, zero outside of it."""
    image, y, x = corner[0], corner[1] + int(pixels["low_y"]), corner[2] + int(pixels["low_x"])
    box = int(plan["box_images"]), int(plan["image_lines"] // plan["pitch"]), int(plan["pitch"])
    found = np.zeros((*box, dy.shape[-1]))
    for at in product(*map(range, box)):
        from_at = image + at[0], y + at[1], x + at[2]
        if all(0 <= place < length for place, length in zip(from_at, dy.shape, strict=False)):
            found[at] = dy[from_at]
    return found.reshape(-1, dy.shape[-1])


def products(plan: Any, pixels: Any, lines: Any, weight: Any, group: int) -> Any:
    """Sums of the 64 lines of a warpgroup, of (lines, Co) and (Co, taps, C); NaN where a line ends after the patch."""
    apart, taps_y, taps_x = plan["box_images"] > 1, int(pixels["taps_y"]), int(pixels["taps_x"])
    own = group * int(plan["image_lines"] if apart else GROUP_LINES)
    beyond = np.full((LINES, lines.shape[-1]), np.nan)
    given_lines, sums = np.concatenate([lines, beyond, beyond]), np.zeros((GROUP_LINES, weight.shape[-1]))
    for y, x in product(range(taps_y), range(taps_x)):
        line = (taps_y - 1 - y) * int(plan["step_y"]) * int(plan["pitch"]) + (taps_x - 1 - x) * int(plan["step_x"])
        row = int(pixels["tap_y"] + y * plan["between_y"])
        tap = row * int(plan["kernel_width"]) + int(pixels["tap_x"] + x * plan["between_x"])
        sums += given_lines[own + line : own + line + GROUP_LINES] @ weight[:, tap]
    return sums


def walked(layout: PatchLayout, dy: Any, weight: Any) -> Any:
    """dx (N, H, W, C) as the kernel finds it by its plan, of one group: each pixel is written once."""
    plan = layout.struct()
    dx = np.full((int(plan["images"]), int(plan["height"]), int(plan["width"]), weight.shape[-1]), np.nan)
    for pixels, residues in zip(plan["pixels"], layout.classes, strict=False):
        tiles = layout.tiles(residues)
        for tile in range(prod(tiles)):
            rest, across = divmod(tile, int(pixels["across"]))
            image, down = divmod(rest, int(pixels["down"]))
            corner = (
                image * int(plan["box_images"]),
                down * int(plan["box_height"]),
                across * int(plan["box_width"]),
            )
            lines = patch_of(plan, pixels, dy, corner)
            for group in range(2):
                store(plan, pixels, products(plan, pixels, lines, weight, group), corner, group, dx)
    return dx


def store(plan: Any, pixels: Any, sums: Any, corner: tuple[int, int, int], group: int, dx: Any) -> None:
    """Results of a warpgroup to where they belong; what belongs to no pixel is dropped."""
    apart = plan["box_images"] > 1
    for number, values in enumerate(sums):
        y, x = divmod(number + (0 if apart else group * GROUP_LINES), int(plan["pitch"]))
        image = corner[0] + (group if apart else 0)
        to_y = (corner[1] + y) * int(plan["stride_y"]) + int(pixels["residue_y"])
        to_x = (corner[2] + x) * int(plan["stride_x"]) + int(pixels["residue_x"])
        inside = x < plan["box_width"] and y < plan["box_height"]
        if inside and image < dx.shape[0] and to_y < dx.shape[1] and to_x < dx.shape[2]:
            assert np.isnan(dx[image, to_y, to_x]).all()
            dx[image, to_y, to_x] = values


def check(made: Convolution) -> None:
    """Every box of a convolution without groups gives what the reference gives."""
    case = made.case("float64", "channels_last")
    found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
    if len(found.size) > 2 or found.groups > 1 or prod(map(min, found.strides, found.size)) > MOST_CLASSES:
        return
    inputs = inputs_of(case)
    expected = expect(case, inputs).values["dx"]
    if made.add:
        expected = expected - inputs.wide["add_to_output"]
    size = (found.batch, *((1, *found.out_size)[-2:]), found.out_channels)
    dy = inputs.wide["dy"].reshape(size)
    weight = inputs.wide["filter"].reshape(found.out_channels, -1, found.channels)
    for box in patches._boxes(found):
        layout = PatchLayout(found, box, patches.COLUMNS[0])
        assert box.width + (box.height - 1) * box.pitch <= (LINES if box.images == 1 else GROUP_LINES)
        assert np.allclose(walked(layout, dy, weight).reshape(expected.shape), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("made", FIXED)
def test_walk_is_the_reference(made: Convolution) -> None:
    """Boxes, taps and residue classes lead every product to the pixel of dx that it belongs to."""
    check(made)


@given(convolutions())
@settings(max_examples=25)
def test_random_walks(made: Convolution) -> None:
    """The same for random sizes, strides, dilations and paddings; no line of a pixel ends after its patch."""
    check(made)


def conv(
    size: tuple[int, ...], channels: int, outs: int, kernel: tuple[int, ...], batch: int = 8, **numbers: Any
) -> ConvGeometry:
    """A convolution, channels last, of margins that keep its size."""
    ones, padding = (1,) * len(size), tuple(length // 2 for length in kernel)
    found = ConvGeometry(batch, channels, outs, 1, size, size, kernel, ones, padding, ones, channels_last=True)
    return replace(found, **numbers)


@pytest.mark.parametrize(
    ("found", "columns"),
    [
        (conv((28, 28), 256, 256, (3, 3)), 128),
        (conv((56, 56), 64, 64, (3, 3)), 64),
        (conv((7, 7), 512, 512, (3, 3), batch=32), 64),
        (conv((400,), 128, 64, (7,), batch=64), 128),
        (conv((28, 28), 256, 256, (3, 3), groups=4), 64),
        (conv((28, 28), 100, 64, (3, 3), channels_last=False), 64),
        (conv((28, 28), 128, 160, (3, 3), groups=2, channels_last=False), 64),
        (conv((14, 14), 64, 64, (3, 3), batch=4, channels_last=False), None),
        (conv((56, 56), 32, 32, (3, 3), channels_last=False), None),
        (conv((28, 28), 64, 64, (1, 1), strides=(2, 2), batch=512, channels_last=False), None),
        # few or unaligned channels, groups across slabs, three axes, one tap, few blocks of long sums
        (conv((28, 28), 24, 64, (3, 3)), None),
        (conv((28, 28), 100, 64, (3, 3)), None),
        (conv((28, 28), 128, 160, (3, 3), groups=2), None),
        (conv((8, 8, 8), 64, 64, (3, 3, 3)), None),
        (conv((28, 28), 64, 64, (1, 1)), None),
        (conv((7, 7), 512, 512, (3, 3), batch=1), None),
    ],
    ids=str,
)
def test_patches_are_for_many_products(found: ConvGeometry, columns: int | None) -> None:
    """Wide tiles where they fill the device; others where tiles would be padding, or not possible."""
    layout = patch_layout(found, "float16", H200)
    assert (layout.columns if layout else None) == columns
    assert layout is None or layout.shared_bytes <= H200.shared_memory_bytes


def test_other_devices_types_and_addresses_gather() -> None:
    """wgmma is of Hopper and 16 bits; its vectors need addresses of 16 bytes; the workspace suits what is used then."""
    found = conv((28, 28), 256, 256, (3, 3))
    assert patch_layout(found, "float32", H200) is None
    assert patch_layout(found, "bfloat16", H200._replace(architecture=100)) is None
    layout, without = cuda.plan(found, "float16", H200), cuda.plan(found, "float16", H200, aligned=False)
    assert isinstance(layout, PatchLayout)
    assert isinstance(without, GatherLayout)
    assert layout.workspace_bytes == without.workspace_bytes > 0
    assert "convolve_patches, 1x4x28 pixels by 128 channels, grid 112x1" in str(layout)


LARGE = (
    Convolution((3, 72, 20, 21), (40, 72, 3, 2), add=True, params={"padding_before": (1, 0)}),
    Convolution((5, 64, 7, 7), (64, 64, 3, 3), params={"padding_before": 1}),
    Convolution((2, 136, 29, 31), (64, 136, 3, 3), add=True, params={"padding_before": 1, "strides": 2}),
    Convolution((3, 192, 30, 33), (96, 192, 3, 3), params={"padding_before": 2, "dilation_rate": 2}),
    Convolution((2, 128, 16, 15), (128, 64, 3, 3), add=True, params={"padding_before": 1, "groups": 2}),
    Convolution((4, 64, 300), (72, 64, 5), params={"padding_before": 2, "strides": 3}),
    Convolution((16, 256, 28, 28), (128, 256, 3, 3), add=True, params={"padding_before": 1}),
    Convolution((2, 64, 25, 26), (64, 64, 1, 1), add=True, params={"strides": 2}),
)
"""Convolutions with tiles of 64 and 128 channels, cut at all ends."""
PADDED = (
    Convolution((3, 75, 20, 21), (41, 75, 3, 2), add=True, params={"padding_before": (1, 0)}),
    Convolution((2, 140, 16, 15), (82, 70, 3, 3), params={"padding_before": 1, "groups": 2, "strides": 2}),
    Convolution((2, 33, 300), (700, 33, 7), add=True, params={"padding_before": 2}),
)
"""Channels that are no whole vectors, which only those that come first may be."""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize(
    ("made", "data_format"),
    [*product(LARGE, LAYOUTS), *((made, "channels_first") for made in PADDED)],
    ids=str,
)
def test_patches_are_right(
    made: Convolution, data_format: str, dtype: str, offset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU; where dy begins at an odd address with channels last, other kernels take their place."""
    monkeypatch.setattr(patches, "FIRST_PRODUCTS", 0)
    case = made.case(dtype, data_format)
    patch_layout.cache_clear()
    if offset:
        case = replace(case, inputs={"dy": InputSpec(layout="offset")})
    assert judged(case, inputs_of(case), "optimized", backend="cuda") == ""


@pytest.mark.parametrize(
    ("batch", "groups", "outs", "each", "size", "kernel"),
    [
        (2, 1, 64, 40, (7, 9), (3, 3)),
        (3, 2, 33, 70, (5, 20), (2, 3)),
        (1, 1, 130, 8, (1, 1), (5, 5)),
        (2, 3, 64, 33, (300,), (7,)),
        (2, 1, 41, 600, (3, 3), (1, 1)),
        (1, 1, 9, 35, (9, 9), (9, 9)),
    ],
)
def test_packed_channels(
    tmp_path: Path, batch: int, groups: int, outs: int, each: int, size: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    """Copies have channels last, zeros beyond a group's, and all of the workspace's bytes."""
    found = conv(size, groups * each, groups * outs, kernel, batch, groups=groups, channels_last=False)
    sizes, pixels, taps = packed(found, patches.DEEP), prod(found.out_size), prod(kernel)
    rng = np.random.default_rng(outs)
    shapes = (batch, groups, outs, pixels), (groups, outs, each, taps)
    dy, weight = (rng.integers(1, 1 << 16, shape, np.uint16) for shape in shapes)
    lines, filters = (np.full(nbytes // 2, 7, np.uint16).view(DeviceArray) for nbytes in packed_bytes(found, sizes))
    with emulated(tmp_path) as emulator:
        run = pack_channels(found, sizes, dy.view(DeviceArray), weight.view(DeviceArray), lines, filters)
        emulator.compile()
        run()
    of_dy, of_filter = (batch, pixels, groups, sizes.outs), (groups, sizes.outs, taps, sizes.each)
    expected = np.zeros(of_dy, np.uint16), np.zeros(of_filter, np.uint16)
    expected[0][..., :outs], expected[1][:, :outs, :, :each] = dy.transpose(0, 3, 1, 2), weight.swapaxes(2, 3)
    for found_copy, copy in zip((lines, filters), expected, strict=True):
        assert np.array_equal(found_copy[: copy.size], copy.ravel())
        assert copy.size * 2 + ALIGNMENT > found_copy.nbytes
        assert (found_copy[copy.size :] == 7).all()
