"""conv_data_grad without tensor cores, for few products: emulated on the host, and the choice of lanes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._cuda.gemm.problem import GemmProblem
from opgauge.ops._cuda.gemm.select import select
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.conv_data_grad import cuda, cuda_small
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.emulation.emulator import Emulator, complaint, emulated
from tests.launches import bind_and_run, recorded
from tests.ops.attempts import complaint as judged
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import FIXED, LAYOUTS, Convolution

SMALL = (
    Convolution((1, 6, 7, 7), (64, 6, 7, 7), add=True),
    Convolution((1, 16, 2, 2), (40, 16, 4, 4), params={"padding_before": 1}),
    Convolution((2, 8, 65), (24, 8, 5), params={"padding_before": 2}),
    Convolution((1, 20, 7, 8), (33, 20, 1, 1), params={"dilation_rate": 2}),
    Convolution((1, 32, 3, 3, 5), (4, 32, 1, 1, 1), add=True),
    Convolution((2, 12, 8, 7), (18, 4, 3, 2), params={"groups": 3, "strides": (2, 3), "padding_before": 1}),
    Convolution((1, 3, 9, 20), (5, 3, 4, 5), params={"dilation_rate": (2, 3), "strides": (4, 2), "padding_before": 5}),
    Convolution((1, 5, 9, 9), (3, 5, 2, 2), params={"dilation_rate": (3, 2), "strides": 2}),
    Convolution((1, 4, 6, 6), (300, 4, 5, 5), params={"padding_before": 4}),
)


H100 = Gpu(132, 90, 232_448)


def choose(patch: pytest.MonkeyPatch, *, small: bool) -> None:
    """Launch `multiply` for all convolutions, or for none; then columns have those without tensor cores."""
    for name in ("replaces_direct", "replaces_product"):
        patch.setattr(cuda, name, lambda *_: small)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator in which the kernels of all convolutions are compiled at once."""
    with emulated(tmp_path_factory.mktemp("emulated")) as made:
        with pytest.MonkeyPatch.context() as patch:
            choose(patch, small=True)
            for convolution, layout, dtype in product(SMALL, LAYOUTS, FLOATS):
                case = convolution.case(dtype, layout)
                made.attempt(case, inputs_of(case)).bind()
            choose(patch, small=False)
            patch.setattr(cuda, "direct_config", lambda *_: None)
            for layout in LAYOUTS:
                case = SMALL[0].case("float64", layout)
                made.attempt(case, inputs_of(case)).bind()
        made.compile()
        yield made


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(len(SMALL)))
def test_few_products_give_what_the_reference_says(
    emulator: Emulator, number: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strides, dilations, ranks, groups, addends and unaligned addresses: dx is right, and nothing else is written."""
    choose(monkeypatch, small=True)
    for turn, dtype in enumerate(FLOATS):
        case = SMALL[number].case(dtype, layout)
        found = complaint(
            emulator, case, inputs_of(case), offset=(number + turn) % 3 == 1, mixed=1 + number % 3, seed=number
        )
        assert found == "", dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(len(SMALL)))
def test_columns_are_folded(emulator: Emulator, number: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, as float64 has them if there are many products, are folded to what the reference says."""
    choose(monkeypatch, small=False)
    monkeypatch.setattr(cuda, "direct_config", lambda *_: None)
    case = SMALL[number].case("float64", layout)
    assert complaint(emulator, case, inputs_of(case), offset=False, mixed=2, seed=number) == ""


def test_every_kernel_is_emulated(emulator: Emulator) -> None:
    """The convolutions above launch `multiply` of every dtype and layout, and `fold` of float64 alone."""
    wanted = {name for name in cuda.SOURCE.expressions if name.startswith(("multiply", "fold<double"))}
    assert {name for asked in emulator.asked.values() for name in asked} == wanted


@pytest.mark.parametrize("number", range(len(SMALL)))
def test_products_are_counted(number: int) -> None:
    """The count is the number of products of the reference, found from tensors of ones."""
    case = SMALL[number].case("float64")
    inputs = inputs_of(case, **{name: np.ones(spec.shape) for name, spec in case.resolved.inputs.items()})
    counted = expect(case, inputs).values["dx"].sum() - SMALL[number].add * inputs.wide["x_like"].size
    assert cuda_small.products(geometry(case.shapes["x_like"], case.shapes["filter"], case.params)) == counted


@pytest.mark.parametrize(
    ("made", "dtype", "small"),
    [
        (Convolution((1, 96, 7, 7), (64, 96, 7, 7)), "float32", True),
        (Convolution((1, 192, 7, 8), (256, 192, 1, 1), params={"dilation_rate": 2}), "bfloat16", False),
        (Convolution((1, 48, 5, 7), (1024, 48, 1, 1)), "bfloat16", True),
        (Convolution((4, 64, 8, 8), (64, 64, 3, 3), params={"padding_before": 1}), "float32", True),
        (Convolution((4, 64, 8, 8), (64, 64, 3, 3), params={"padding_before": 1}), "float16", False),
        (Convolution((8, 64, 14, 14), (128, 64, 1, 1)), "float32", False),
        (Convolution((8, 64, 14, 14), (64, 1, 3, 3), params={"groups": 64}), "float32", False),
        (Convolution((1, 16, 999, 999), (4, 16, 1, 1), params={"strides": 50}), "float32", False),
    ],
)
def test_few_products_take_one_launch(made: Convolution, dtype: str, small: bool) -> None:
    """Whether `multiply` is launched, and nothing else; tensor cores have the others, `direct` small groups."""
    with recorded() as launches:
        bind_and_run(made.case(dtype), find_kernel("conv_data_grad", "optimized", "cuda", dtype), launches)
    assert ([launch.kernel for launch in launches] == ["multiply"]) == small


@pytest.mark.parametrize("made", SMALL)
def test_threads_of_an_element_add_short_chains(made: Convolution) -> None:
    """Threads of an element are a power of two within a block, share the channels, and add short chains."""
    case = made.case("float32")
    found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
    config, outs = cuda_small.small_config(found, H100), found.out_channels // found.groups
    taps = cuda_small.products(found) / (cuda_small.elements(found) * outs)
    assert config.lanes & (config.lanes - 1) == 0
    assert config.lanes < 2 * outs
    assert -(-outs // config.lanes) * taps <= 256


def test_an_empty_batch_has_a_plan() -> None:
    """A workspace is allocated before it is known that there is nothing to compute."""
    for groups in (1, 4):
        found = geometry((0, 4, 5, 5), (4, 4 // groups, 3, 3), ConvDataGradParams(groups=groups))
        assert isinstance(cuda.plan(found, "float32", H100), cuda_small.SmallConfig)


@pytest.mark.parametrize(
    ("pixels", "channels", "outs", "splits"),
    [(64, 512, 2048, 16), (392, 512, 2048, 5), (49, 512, 384, 1), (6272, 512, 2048, 1)],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_long_products_of_few_tiles_are_divided(pixels: int, channels: int, outs: int, splits: int, dtype: str) -> None:
    """Among blocks, if partial sums are few bytes, with and without an addend; the workspace has room for them."""
    params = ConvDataGradParams(data_format="channels_last")
    found = geometry((pixels, 1, 1, channels), (outs, 1, 1, channels), params)
    for added in (False, True):
        config = cuda.plan(found, dtype, H100, added=added)
        assert isinstance(config, GemmProblem)
        chosen = select(config, H100)
        assert chosen.splits == splits
        assert splits == 1 or chosen.workspace_bytes == 4 * splits * pixels * channels <= cuda.MOST_PARTIAL_BYTES


@pytest.mark.parametrize("dtype", FLOATS)
def test_images_of_one_pixel_are_rows(dtype: str) -> None:
    """Channels of one pixel are neighbours in either layout, so that vectors of them are multiplied."""
    x, weight = (32, 4096, 1, 1), (512, 4096, 1, 1)
    first = cuda.plan(cuda._geometry(x, weight, ConvDataGradParams()), dtype, H100)
    last = ConvDataGradParams(data_format="channels_last")
    assert str(first) == str(cuda.plan(geometry((32, 1, 1, 4096), (512, 1, 1, 4096), last), dtype, H100))


def test_few_elements_with_many_channels_are_shared() -> None:
    """One thread per element suffices for many elements; few elements of long sums have many threads each."""
    many = geometry((8, 16, 64, 64), (8, 16, 1, 1), ConvDataGradParams())
    few = geometry((1, 48, 5, 7), (1024, 48, 1, 1), ConvDataGradParams())
    assert cuda_small.small_config(many, H100).lanes == 1
    assert cuda_small.small_config(few, H100).lanes >= 16


@pytest.mark.parametrize(
    ("x", "outs", "dtype", "is_small"),
    [
        ((32, 1, 28, 28), 64, "float32", True),
        ((32, 2, 28, 28), 64, "float32", True),
        ((64, 4, 56, 56), 512, "float32", True),
        ((64, 1, 56, 56), 64, "float32", True),
        ((64, 1, 56, 56), 32, "float16", True),
        ((64, 2, 56, 56), 256, "float16", False),
        ((64, 8, 56, 56), 256, "float32", False),
        ((1 << 14, 2, 256, 256), 64, "float32", False),
    ],
)
def test_few_channels_of_one_tap_take_one_launch(x: tuple[int, ...], outs: int, dtype: str, *, is_small: bool) -> None:
    """In float32 the rows of a product would be empty; 2^31 elements are beyond the launch."""
    found = geometry(x, (outs, x[1], 1, 1), ConvDataGradParams())
    assert isinstance(cuda.plan(found, dtype, H100), cuda_small.SmallConfig) == is_small


@pytest.mark.parametrize(
    ("x", "filter", "groups", "kernel"),
    [
        ((8, 256, 1, 1), (512, 1, 7, 7), 256, "multiply"),
        ((32, 64, 112, 112), (64, 1, 3, 3), 64, "direct"),
        ((2, 1, 666, 903), (2, 1, 4, 4), 1, "direct"),
    ],
)
def test_small_groups_take_the_faster_launch(
    x: tuple[int, ...], filter: tuple[int, ...], groups: int, kernel: str
) -> None:
    """Few elements by `multiply`, many by `direct`, with groups or without."""
    made = Convolution(x, filter, params={"groups": groups, "padding_before": 3 if max(x[2:]) == 1 else 0})
    with recorded() as launches:
        bind_and_run(made.case("float16"), find_kernel("conv_data_grad", "optimized", "cuda", "float16"), launches)
    assert [launch.kernel for launch in launches] == [kernel]


def test_a_single_tap_has_no_dilation() -> None:
    """A dilation of an axis with one tap changes nothing, so that plans of 1x1 convolutions are alike."""
    one, other = (ConvDataGradParams(dilation_rate=dilation) for dilation in ((1, 3), (2, 3)))
    assert geometry((1, 2, 5, 9), (4, 2, 1, 3), one) == geometry((1, 2, 5, 9), (4, 2, 1, 3), other)


@pytest.mark.gpu
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_way_is_right(dtype: str, layout: str, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolutions above, and others, are right on a GPU with and without tensor cores."""
    choose(monkeypatch, small=small)
    for convolution in (*SMALL, *FIXED):
        case = convolution.case(dtype, layout)
        assert judged(case, inputs_of(case), "optimized", backend="cuda") == ""
