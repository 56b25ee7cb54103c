"""conv_data_grad's products of pairs on the CPU, wherever the processor has AMX or AVX512_BF16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.ops._cpu.tile import jit_pairs
from opgauge.ops.conv_data_grad import cpu, cpu_pairs, cpu_rows
from opgauge.ops.conv_data_grad.cpu_walk import walk_of
from opgauge.ops.conv_data_grad.op import geometry, three
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution, convolutions

pytestmark = pytest.mark.skipif(not jit_pairs.is_available(), reason="the processor has neither")


@contextmanager
def always(threads: int = 1) -> Iterator[list[object]]:
    """Pairs are preferred wherever it can be; yields the calls that were bound by them."""
    bound: list[object] = []
    select = cpu._with_pairs

    def record(*given: object) -> object:
        step = select(*given)  # type: ignore[arg-type]
        bound.extend([] if step is None else [step])
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "others_ns", lambda *_, **__: np.inf)
        patch.setattr(cpu, "_with_pairs", record)
        patch.setattr(cpu_rows, "count", lambda *_: threads)
        yield bound


@given(convolutions(), st.sampled_from(LAYOUTS))
@settings(max_examples=60)
def test_random_convolutions(made: Convolution, layout: str) -> None:
    """Products of pairs are within the bound, whatever the rank, sizes, strides, groups and layout."""
    case = made.case("bfloat16", layout)
    with always():
        assert complaint(case, inputs_of(case), "optimized") == ""


MANY = (
    Convolution((2, 70, 19, 21), (97, 70, 3, 3), add=True, params={"padding_before": 1}),
    Convolution((3, 64, 9, 40), (66, 32, 2, 3), params={"dilation_rate": (2, 1), "groups": 2}),
    Convolution((2, 40, 30, 30), (33, 40, 3, 3), params={"strides": 2, "padding_before": (1, 0)}),
    Convolution((1, 17, 5, 9, 11), (50, 17, 3, 2, 3), add=True, params={"padding_before": (1, 0, 2)}),
    Convolution((4, 100, 25, 25), (130, 100, 1, 1)),
    Convolution((3, 33, 7, 5, 7), (20, 33, 5, 5, 5), add=True, params={"padding_before": 2}),
    Convolution((2, 9, 40, 6), (7, 9, 2, 2), add=True, params={"dilation_rate": (30, 1)}),
)
"""Channels and pixels of several blocks, whole or not; blocks of margins, and of pixels that no tap reaches."""


@pytest.mark.parametrize("made", [made for made in MANY if "strides" not in (made.params or {})])
def test_each_block_has_the_taps_that_reach_it(made: Convolution, monkeypatch: pytest.MonkeyPatch) -> None:
    """No others, but one where no tap reaches its pixels, and all where there are too many to look at."""
    case = made.case("bfloat16", "channels_first")
    found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
    walk, taps = walk_of(found), int(np.prod(found.kernel))
    laid, dx = (np.zeros((found.batch, *walk.padded), bool) for _ in range(2))
    laid[(slice(None), *(slice(m, m + n) for m, n in zip(walk.margins, three(found.out_size, 1), strict=True)))] = True
    dx[(slice(None), *map(slice, three(found.size, 1)))] = True
    places, pixels = np.flatnonzero(laid), np.arange(walk.pixels)
    spans, listed = cpu_pairs.taps_of_blocks.__wrapped__(found)
    for block, (first, end) in enumerate(spans):
        now = pixels[block * cpu_pairs.BLOCK :][: cpu_pairs.BLOCK]
        near = now[0] + np.arange(cpu_pairs.BLOCK)
        expected = [tap for tap in range(taps) if np.isin(near + walk.shifts[tap], places).any()] or [0]
        assert [*listed[first:end]] == (expected if dx.reshape(-1)[now].any() else [])
    monkeypatch.setattr(cpu_pairs, "MOST_LISTED", 0)
    spans, listed = cpu_pairs.taps_of_blocks.__wrapped__(found)
    assert ([*listed], spans.tolist()) == ([*range(taps)], [[0, taps]] * -(-walk.pixels // cpu_pairs.BLOCK))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", MANY)
def test_many_blocks(made: Convolution, layout: str, threads: int) -> None:
    """Sums of many channels and pixels are right on one thread and on two, and are made of pairs."""
    case = made.case("bfloat16", layout)
    with always(threads) as bound:
        assert complaint(case, inputs_of(case), "optimized") == ""
    assert bound


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_that_are_not_finite_stay_in_their_place(layout: str) -> None:
    """A NaN or infinity of dy or the addend reaches no pixel, row or image beside its own, and no other channel."""
    for made in MANY[:3]:
        case = Convolution(made.x, made.filter, add=True, params=made.params).case("bfloat16", layout)
        inputs = inputs_of(case)
        changed = {name: value.copy() for name, value in inputs.values.items()}
        for name, value in (("dy", np.nan), ("dy", np.inf), ("add_to_output", np.nan)):
            flat = changed[name].reshape(-1)
            flat[[7, flat.size // 2, -1]] = value
            with always() as bound:
                assert complaint(case, inputs_of(case, **changed), "optimized") == ""
            assert bound


@pytest.mark.parametrize("strides", [1, 2])
def test_large_products_are_preferred(monkeypatch: pytest.MonkeyPatch, strides: int) -> None:
    """The estimates choose pairs for products of many channels, with strides or without."""
    bound: list[object] = []
    select = cpu._with_pairs

    def record(*given: object) -> object:
        bound.append(select(*given))  # type: ignore[arg-type]
        return bound[-1]

    monkeypatch.setattr(cpu, "_with_pairs", record)
    made = Convolution((2, 64, 28, 28), (64, 64, 3, 3), params={"padding_before": 1, "strides": strides})
    case = made.case("bfloat16")
    assert complaint(case, inputs_of(case), "optimized") == ""
    assert None not in bound


def test_other_processors_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is bound by pairs where they are not available."""
    monkeypatch.setattr(jit_pairs, "is_available", lambda: False)
    case = MANY[0].case("bfloat16")
    with always() as bound:
        assert complaint(case, inputs_of(case), "optimized") == ""
    assert not bound
