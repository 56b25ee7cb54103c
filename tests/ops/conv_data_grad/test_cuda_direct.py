"""conv_data_grad's direct kernels: emulated on the host, and the choice of their configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops.conv_data_grad import cuda, cuda_direct
from opgauge.ops.conv_data_grad.cuda_direct import DirectConfig, configs, pays, select
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, ConvGeometry, geometry, three
from tests.emulation.emulator import Emulator, complaint, emulated
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution

SHARED_BYTES, PROCESSORS = 226 * 1024, 132
GROUPED = (
    Convolution((2, 5, 7, 9), (5, 1, 3, 3), params={"padding_before": 1, "groups": 5}),
    Convolution((1, 16, 9, 10), (16, 1, 5, 5), add=True, params={"padding_before": 2, "groups": 16}),
    Convolution((2, 6, 8, 7), (12, 1, 3, 3), params={"padding_before": 1, "groups": 6, "strides": 2}),
    Convolution((1, 4, 17, 5), (4, 1, 7, 7), params={"padding_before": 3, "groups": 4}),
    Convolution((1, 4, 12, 13), (4, 1, 3, 3), params={"padding_before": 2, "groups": 4, "dilation_rate": 2}),
    Convolution((2, 12, 6, 7), (8, 3, 3, 3), add=True, params={"padding_before": 1, "groups": 4}),
    Convolution((1, 16, 6, 7), (8, 8, 2, 2), params={"groups": 2}),
    Convolution(
        (1, 12, 9, 7),
        (8, 3, 3, 3),
        params={"groups": 4, "strides": (2, 1), "padding_before": 1, "dilation_rate": (1, 2)},
    ),
    Convolution((2, 8, 50), (8, 1, 4), params={"groups": 8, "padding_before": 3}),
    Convolution((1, 2, 700), (2, 1, 3), params={"groups": 2, "padding_before": 1}),
    Convolution((2, 6, 4, 5, 6), (6, 2, 3, 1, 3), params={"groups": 3, "padding_before": 1, "strides": (2, 1, 1)}),
    Convolution((3, 24, 5, 5), (24, 1, 1, 1), add=True, params={"groups": 24}),
    Convolution((1, 3, 40, 30), (3, 1, 9, 4), params={"groups": 3, "padding_before": 4}),
    Convolution((1, 64, 7, 7), (64, 1, 3, 3), params={"groups": 64, "padding_before": 1}),
    Convolution((2, 1, 13, 11), (2, 1, 4, 4), add=True),
)


def geometry_of(made: Convolution, layout: str) -> ConvGeometry:
    """The convolution in a layout."""
    case = made.case("float32", layout)
    return geometry(case.shapes["x_like"], case.shapes["filter"], case.params)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator in which the kernels of all convolutions are compiled at once; nothing else is chosen meanwhile."""
    with pytest.MonkeyPatch.context() as patch, emulated(tmp_path_factory.mktemp("emulated")) as made:
        patch.setattr(cuda, "replaces_direct", lambda *_: False)
        patch.setattr(cuda, "depthwise_config", lambda *_: None)
        for convolution, layout, dtype in product(GROUPED, LAYOUTS, FLOATS):
            case = convolution.case(dtype, layout)
            made.attempt(case, inputs_of(case)).bind()
        made.compile()
        yield made


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(len(GROUPED)))
def test_small_groups_give_what_the_reference_says(emulator: Emulator, number: int, layout: str) -> None:
    """Strides, dilations, ranks, odd sizes and unaligned addresses: dx is right, and nothing else is written."""
    for turn, dtype in enumerate(("float32", FLOATS[number % len(FLOATS)])):
        case = GROUPED[number].case(dtype, layout)
        found = complaint(
            emulator, case, inputs_of(case), offset=(number + turn) % 3 == 1, mixed=1 + number % 3, seed=number
        )
        assert found == ""


def test_every_kernel_is_emulated(emulator: Emulator) -> None:
    """The convolutions above want each compiled kernel of direct.cu at least once."""
    assert set(emulator.asked[cuda_direct.SOURCE]) == set(cuda_direct.SOURCE.expressions)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", GROUPED)
def test_configurations_cover_dx(made: Convolution, layout: str) -> None:
    """Every configuration that is considered covers all pixels and groups, within threads and shared memory."""
    found = geometry_of(made, layout)
    size, several = three(found.size, 1), list(configs(found, "float32", SHARED_BYTES))
    assert several
    for config in several:
        (down, across, group_blocks), (rows, columns) = config.counts, config.tile
        assert down * rows >= size[1]
        assert across * columns >= size[2]
        assert group_blocks * config.block_groups >= found.groups
        assert config.threads <= cuda_direct.THREADS
        assert config.shared_bytes <= SHARED_BYTES
        assert prod(config.lanes) * config.subs <= config.threads


def test_a_plan_sets_every_field() -> None:
    """No field of the kernel's Plan that may not be zero is left at zero."""
    found = geometry_of(GROUPED[4], "channels_last")
    config = select(found, "float32", SHARED_BYTES, PROCESSORS)
    assert config is not None
    plan = config.struct(4, vector_store=True)
    may_be_zero = {"row_step", "column_step", "padding", "unit"}
    assert all(plan[name].tobytes().strip(b"\0") for name in plan.dtype.names if name not in may_be_zero)


def test_channels_last_blocks_take_whole_sectors() -> None:
    """With channels last a thread block takes at least 32 bytes of neighbouring channels, where there are as many."""
    found = geometry((8, 56, 56, 96), (96, 3, 3, 1), ConvDataGradParams(1, 1, 1, 96, "channels_last"))
    for dtype in FLOATS:
        config = select(found, dtype, SHARED_BYTES, PROCESSORS)
        assert config is not None
        assert config.block_groups * config.itemsize >= cuda_direct.SECTOR_BYTES


def test_large_groups_are_left_to_tensor_cores() -> None:
    """Depthwise convolutions and few channels without groups pay, groups of 32 channels do not."""
    depthwise = geometry((8, 64, 9, 9), (64, 1, 3, 3), ConvDataGradParams(1, 1, 1, 64))
    wide = geometry((8, 64, 9, 9), (64, 32, 3, 3), ConvDataGradParams(1, 1, 1, 2))
    few = geometry((8, 4, 9, 9), (4, 4, 3, 3), ConvDataGradParams(1, 1))
    whole = geometry((8, 8, 9, 9), (8, 8, 3, 3), ConvDataGradParams(1, 1))
    assert [pays(found, "float16") for found in (depthwise, few, wide, whole)] == [True, True, False, False]


def test_a_larger_tile_costs_more() -> None:
    """The estimate of a block grows with the pixels that it loads."""
    found = geometry((8, 64, 56, 56), (64, 1, 3, 3), ConvDataGradParams(1, 1, 1, 64))
    small = DirectConfig(found, "float32", 1, 3, True, (1, 28), 1, 1)
    assert replace(small, lanes=(2, 28)).cost > small.cost
