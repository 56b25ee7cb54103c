"""conv_data_grad on the CPU in vectors along rows, channels first: bands of residue classes, on random convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opgauge.ops import FLOATS, ShapeError
from opgauge.ops.conv_data_grad import cpu, cpu_rows
from opgauge.ops.conv_data_grad.cpu_costs import Way, way_of
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution

DRAWN = 12
"""Convolutions of each test."""


def _drawn(rng: np.random.Generator) -> Convolution:
    """A convolution with groups of one to three axes, whose rows are shorter and longer than vectors."""
    while True:
        rank, groups = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        per_group, outs = (int(number) for number in rng.integers(1, 4, 2))

        def each(low: int, high: int, count: int = rank) -> tuple[int, ...]:
            return tuple(int(number) for number in rng.integers(low, high, count))

        size, kernel = (*each(1, 12, rank - 1), *each(1, 60, 1)), each(1, 5)
        params: dict[str, Any] = {"strides": each(1, 5), "padding_before": each(0, 5), "dilation_rate": each(1, 4)}
        made = Convolution(
            (int(rng.integers(1, 3)), per_group * groups, *size),
            (outs * groups, per_group, *kernel),
            add=bool(rng.integers(2)),
            params={**params, "groups": groups},
        )
        try:
            geometry(made.x, made.filter, ConvDataGradParams(**made.params))
        except ShapeError:
            continue
        return made


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("threads", "band_bytes"), [(1, cpu_rows.BAND_BYTES), (1, 0), (2, 1 << 10)])
def test_random_groups_along_rows(dtype: str, threads: int, band_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any strides, dilations and padding, in one band and in several, on one thread and on two."""
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.DIRECT)
    monkeypatch.setattr(cpu, "_with_pairs", lambda *_: None)
    monkeypatch.setattr(cpu_rows, "count", lambda *_: threads)
    monkeypatch.setattr(cpu_rows, "BAND_BYTES", band_bytes)
    monkeypatch.setattr(cpu_rows, "BAND_REACHES", 1)
    rng = np.random.default_rng([FLOATS.index(dtype), threads, band_bytes])
    for _ in range(DRAWN):
        case = _drawn(rng).case(dtype, LAYOUTS[0])
        assert complaint(case, inputs_of(case), "optimized") == "", case


@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 7, 8, 15, 17, 23, 33, 43, 64])
def test_rows_around_whole_vectors(width: int, strides: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last vector of a row overlaps the one before; shorter rows are no vectors."""
    monkeypatch.setattr(cpu, "way_of", lambda *_: Way.DIRECT)
    for kernel in ((3, 3), (1, 2)):
        params = {"padding_before": 1, "strides": strides, "groups": 3}
        case = Convolution((2, 3, 5, width), (3, 1, *kernel), add=True, params=params).case("float32", LAYOUTS[0])
        assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_the_bands_of_one_image(threads: int) -> None:
    """A single channel is one band if it fits the caches, and several on threads; a long image is always several."""
    wide = np.dtype(np.float32)
    for pixels, alone in ((40, threads == 1), (1000, False)):
        found = geometry((1, 1, pixels, pixels), (1, 1, 3, 3), ConvDataGradParams(padding_before=1))
        shape, _ = cpu_rows._shape(found, 1, 9, threads, wide, is_direct=True)
        assert (shape.bands == 1) is alone
        assert shape.bands * shape.band >= pixels > (shape.bands - 1) * shape.band


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(("channels", "pixels", "strides"), [(256, 56, 1), (256, 56, 2), (512, 28, 1)])
def test_depthwise_images_are_computed_along_rows(channels: int, pixels: int, strides: int) -> None:
    """Channels first, of a mobile network's sizes, with strides too."""
    params = ConvDataGradParams(padding_before=1, strides=strides, groups=channels)
    found = geometry((1, channels, pixels, pixels), (channels, 1, 3, 3), params)
    assert way_of(found, np.dtype(np.float32)) is Way.DIRECT
