"""Depthwise conv_data_grad on CUDA, channels last: emulated on the host, and when it is launched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.conv_data_grad import cuda
from opgauge.ops.conv_data_grad.cuda_depthwise import PIXELS, DepthwiseConfig, depthwise_config
from opgauge.ops.conv_data_grad.cuda_small import THREADS
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry
from tests.emulation.emulator import Emulator, complaint, emulated
from tests.launches import bind_and_run, recorded
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import Convolution

H100 = Gpu(132, 90, 232_448)
SMALLEST = Gpu(0, 90, 232_448)
"""A GPU for which no launch is small."""
MANY = 960
"""Channels that occupy many blocks, also of few pixels."""


def depthwise(
    size: tuple[int, ...], channels: int, kernel: tuple[int, ...], *, add: bool = False, **params: object
) -> Convolution:
    """A convolution whose channels are apart from each other, for two images."""
    return Convolution((2, channels, *size), (channels, 1, *kernel), params={"groups": channels, **params}, add=add)


CONVOLUTIONS = (
    depthwise((6, 7), 8, (3, 3), padding_before=1, strides=2),
    depthwise((9, 7), 24, (1, 1), strides=2, add=True),
    depthwise((5, 6), 3, (3, 3), padding_before=1),
    depthwise((6, 9), 16, (5, 7), padding_before=(2, 3), strides=(1, 2)),
    depthwise((4, 5, 6), 16, (2, 3, 3), padding_before=1, strides=(2, 3, 1), dilation_rate=(1, 2, 1)),
    depthwise((9,), 72, (5,), padding_before=2, add=True),
    depthwise((3, 30), 40, (2, 1), padding_before=(1, 0)),
    depthwise((5, 19), 8, (3, 5), padding_before=(1, 7), strides=(2, 2), add=True),
    depthwise((4, 11), 16, (1, 7), padding_before=(0, 3)),
)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator in which the kernels of all convolutions are compiled at once, aligned and not."""
    with emulated(tmp_path_factory.mktemp("emulated")) as made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda, "current_gpu", lambda: SMALLEST)
            for convolution, dtype, offset in product(CONVOLUTIONS, FLOATS, (False, True)):
                case = convolution.case(dtype, "channels_last")
                made.attempt(case, inputs_of(case), offset=offset).bind()
        made.compile()
        yield made


@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
def test_channels_apart_give_what_the_reference_says(
    emulator: Emulator, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strides, dilations, ranks, addends and unaligned addresses: dx is right, and nothing else is written."""
    monkeypatch.setattr(cuda, "current_gpu", lambda: SMALLEST)
    for turn, dtype in enumerate(FLOATS):
        case = CONVOLUTIONS[number].case(dtype, "channels_last")
        offset = (number + turn) % 3 == 1
        found = complaint(emulator, case, inputs_of(case), offset=offset, mixed=1 + number % 3, seed=number)
        assert found == "", dtype


def test_the_convolutions_want_what_is_compiled(emulator: Emulator) -> None:
    """Each number of taps, stride and vector is emulated."""
    names = [name for asked in emulator.asked.values() for name in asked]
    wanted = [name for name in cuda.SOURCE.expressions if name.startswith("depthwise<float,")]
    assert {name.split(", ", 2)[2] for name in wanted} == {name.split(", ", 2)[2] for name in names}
    assert {name.split(", ", 2)[1] for name in wanted} == {
        name.split(", ", 2)[1] for name in names if "<float," in name
    }


@pytest.mark.parametrize(
    ("made", "layout", "kernel"),
    [
        (depthwise((56, 56), 128, (3, 3), padding_before=1), "channels_last", "depthwise"),
        (depthwise((56, 56), 128, (3, 3), padding_before=1), "channels_first", "direct"),
        (depthwise((56, 56), 128, (3, 3), padding_before=1, dilation_rate=(2, 1)), "channels_last", "depthwise"),
        (depthwise((56, 56), 128, (3, 3), padding_before=1, dilation_rate=2), "channels_last", "direct"),
        (depthwise((56, 56), 128, (3, 3), strides=3), "channels_last", "direct"),
        (depthwise((56, 56), 128, (4, 4)), "channels_last", "direct"),
        (depthwise((9, 60, 9), 32, (64, 7, 7), padding_before=60), "channels_last", "direct"),
        (Convolution((2, 64, 56, 56), (128, 1, 3, 3), params={"groups": 64}), "channels_last", "direct"),
    ],
)
def test_filters_without_a_kernel_are_multiplied_directly(made: Convolution, layout: str, kernel: str) -> None:
    """Only what a compiled kernel suits, and a block's shared memory holds, is launched so, in one launch."""
    with recorded() as launches:
        bind_and_run(
            made.case("float16", layout), find_kernel("conv_data_grad", "optimized", "cuda", "float16"), launches
        )
    assert [launch.kernel for launch in launches] == [kernel]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("channels", [1, 3, 8, 65, MANY])
def test_every_channel_of_every_pixel_has_a_thread(dtype: str, channels: int) -> None:
    """Blocks cover rows and channels; in a small launch, or of odd numbers of channels, a thread has one."""
    for size in (7, 300):
        params = ConvDataGradParams(padding_before=1, strides=2, groups=channels, data_format="channels_last")
        found = geometry((2, size, size, channels), (channels, 3, 3, 1), params)
        config = depthwise_config(found, dtype, H100)
        assert isinstance(config, DepthwiseConfig)
        along, slices = config.grid
        assert config.vectors * config.vector * slices >= channels
        assert config.vector == 1 or (size == 300 and channels % 8 == 0) or channels == MANY
        assert along * (THREADS // config.vectors) * PIXELS >= 2 * size * size


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_channels_apart_are_right_on_a_gpu(dtype: str) -> None:
    """At addresses of any alignment."""
    many = depthwise((57, 130), 72, (3, 3), padding_before=1, strides=2, add=True)
    for convolution in (*CONVOLUTIONS, many):
        case = convolution.case(dtype, "channels_last")
        inputs = inputs_of(case)
        kernel = find_kernel("conv_data_grad", "optimized", "cuda", dtype)
        for layout in ("contiguous", "offset"):
            attempt = Attempt(case, kernel, inputs.values, timer_for("cuda"), layout=layout)
            assert attempt.judge(expect(case, inputs)).reason == ""
