"""deformable_conv's direct kernel: emulated on the host, right on a GPU, and the choice of its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.ops import find_kernel
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops.deformable_conv import cuda_direct
from opgauge.ops.deformable_conv.cuda_direct import LONGEST_CHAIN, THREADS, WAVES, direct_layout, pays
from opgauge.ops.deformable_conv.cuda_grad import few
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from tests.emulation.emulator import Emulator, complaint, emulated
from tests.launches import bind_and_run, recorded
from tests.ops.attempts import case_of, inputs_of
from tests.ops.attempts import complaint as judged

Given = tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]
PROCESSORS = 132
SHIPPED = Path(__file__).parents[3] / "cases"
CASES: tuple[Given, ...] = (
    ((1, 3, 19, 22), (6, 1, 4, 4), False, {"strides": 2, "groups": 3, "paddings": (0, 1)}),
    ((2, 8, 9, 8), (8, 2, 4, 2), True, {"groups": 4, "paddings": (1, 0)}),
    ((2, 12, 5, 7), (12, 2, 3, 3), True, {"groups": 6, "deformable_groups": 2, "paddings": 1}),
    ((1, 12, 5, 7), (9, 4, 2, 3), True, {"groups": 3, "deformable_groups": 2, "dilations": (2, 1)}),
    ((1, 12, 6, 6), (10, 6, 2, 2), False, {"groups": 2, "deformable_groups": 6}),
    ((3, 5, 4, 4), (19, 5, 3, 3), True, {"paddings": 1}),
    ((1, 64, 1, 1), (8, 64, 3, 3), False, {"paddings": 1}),
    ((3, 32, 3, 5), (20, 32, 3, 5), True, {"deformable_groups": 4}),
    ((2, 7, 6, 5), (7, 1, 1, 1), False, {"groups": 7}),
)
"""Shapes of x and filter, whether there is a mask, and parameters."""


def made(given: Given, dtype: str) -> Case:
    """A case of `CASES`."""
    x, weight, masked, params = given
    found = geometry(x, weight, DeformableConvParams(**params))
    shapes = {"x": x, "filter": weight, **({"mask": found.mask_shape} if masked else {})}
    return case_of("deformable_conv", shapes, dtype, **params)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator in which the kernels of all cases are compiled at once; they pay for every shape."""
    with emulated(tmp_path_factory.mktemp("emulated")) as one, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_direct, "pays", lambda _: True)
        for given, dtype in product(CASES, FLOATS):
            case = made(given, dtype)
            one.attempt(case, inputs_of(case)).bind()
        one.compile()
        yield one


@pytest.mark.parametrize("number", range(len(CASES)))
def test_few_channels_give_what_the_reference_says(emulator: Emulator, number: int) -> None:
    """Groups, deformable groups that overlap them partially, strides, masks and unaligned addresses: out is right."""
    for turn, dtype in enumerate(FLOATS):
        case = made(CASES[number], dtype)
        found = complaint(
            emulator, case, inputs_of(case), offset=(number + turn) % 3 == 1, mixed=1 + number % 3, seed=number
        )
        assert found == "", dtype


def test_every_kernel_is_emulated(emulator: Emulator) -> None:
    """The cases above want each compiled kernel of direct.cu at least once."""
    assert set(emulator.asked[cuda_direct.SOURCE]) == set(cuda_direct.SOURCE.expressions)


def test_lanes_fill_the_device() -> None:
    """Few pixels are shared by whole blocks, many by none; the steps of a thread stay below the longest chain."""
    one = geometry((1, 128, 1, 1), (8, 128, 3, 3), DeformableConvParams(paddings=1))
    many = geometry((1, 3, 482, 516), (6, 1, 4, 4), DeformableConvParams(groups=3))
    assert direct_layout(one, 4, PROCESSORS).lanes == THREADS
    assert direct_layout(many, 4, PROCESSORS).lanes == 1
    long = geometry((8, 256, 90, 90), (8, 256, 3, 3), DeformableConvParams())
    assert direct_layout(long, 4, PROCESSORS).steps <= LONGEST_CHAIN
    across, down = direct_layout(long, 4, PROCESSORS).grid
    assert across * down >= WAVES * PROCESSORS


def test_what_pays() -> None:
    """Few channels per group, or few pixels; of the shipped cases only small ones."""
    taken: tuple[Given, ...] = (CASES[0], CASES[1], ((1, 128, 1, 1), (8, 128, 3, 3), False, {"paddings": 1}))
    left: tuple[Given, ...] = (
        ((8, 64, 64, 64), (64, 16, 3, 3), False, {"groups": 4}),
        ((8, 3, 64, 64), (64, 3, 3, 3), False, {}),
        ((1, 64, 16, 16), (64, 64, 3, 3), True, {"paddings": 1}),
    )
    for cases, expected in ((taken, True), (left, False)):
        for x, weight, _, params in cases:
            assert pays(geometry(x, weight, DeformableConvParams(**params))) == expected
    for case in load_cases([SHIPPED]):
        if case.op.startswith("deformable_conv") and "smoke" not in case.tags:
            found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
            assert not pays(found)
            assert not few(found)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_launch_without_workspace(dtype: str) -> None:
    """A convolution of few channels is one launch in every dtype, and needs no workspace."""
    case = made(CASES[1], dtype)
    kernel = find_kernel("deformable_conv", "optimized", "cuda", dtype)
    with recorded() as launches:
        bind_and_run(case, kernel, launches)
        assert kernel.workspace is not None
        assert kernel.workspace(case.resolved, case.params) == 0
    assert [launch.kernel for launch in launches] == ["direct"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("given", CASES)
def test_right_on_a_gpu(given: Given, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cases on a GPU, each by the direct kernel."""
    monkeypatch.setattr(cuda_direct, "pays", lambda _: True)
    case = made(given, dtype)
    assert judged(case, inputs_of(case), "optimized", backend="cuda") == ""
