"""The reference's own sums: there and back, whole or in pieces, in blocks or at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opgauge.ops.deformable_conv import rows, sampling
from opgauge.ops.deformable_conv.op import geometry
from opgauge.ops.deformable_conv.reference import gradient_bounds, gradients, output, output_bounds
from opgauge.ops.deformable_conv.rows import CORNERS, RowScatter, blend
from tests.ops.deformable_conv.shapes import CASES, scattered

OP = "deformable_conv_grad"
EPSILON = 2.0**-23
Arrays = dict[str, NDArray[Any]]


def everything(arrays: Mapping[str, NDArray[Any]], params: Any) -> Arrays:
    """All that reference and bounds of both ops are made of."""
    found = geometry(arrays["x"].shape, arrays["filter"].shape, params)
    size, wobble = output_bounds(arrays, found)
    sizes, wobbles = gradient_bounds(arrays, found, EPSILON)
    kinds = {"": gradients(arrays, found), "size of ": sizes, "wobble of ": wobbles}
    by_name = {kind + name: some for kind, named in kinds.items() for name, some in named.items()}
    return {"out": output(arrays, found), "size of out": size, "wobble of out": wobble, **by_name}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_pieces_and_blocks_change_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pixel at a time, in blocks of a sample or two, every sum is the same but for rounding."""
    case = CASES[number]("float64", OP)
    arrays = scattered(case, number).wide
    arrays["offset"].reshape(-1)[::7] = np.nan
    whole = everything(arrays, case.params)
    monkeypatch.setattr(sampling, "MOST", 1)
    monkeypatch.setattr(rows, "BLOCK", 4)
    for name, value in everything(arrays, case.params).items():
        assert np.isfinite(value).all(), name
        assert np.allclose(value, whole[name], rtol=1e-12, atol=1e-13), name


@pytest.mark.parametrize("number", range(len(CASES)))
def test_sizes_are_gradients_of_magnitudes(number: int) -> None:
    """Where all factors are positive, a gradient is the sum over absolute values that its bound rests on."""
    case = CASES[number]("float64", OP)
    arrays = scattered(case, number).wide
    found = geometry(arrays["x"].shape, arrays["filter"].shape, case.params)
    positive = {name: array if name == "offset" else np.abs(array) for name, array in arrays.items()}
    sizes, expected = gradient_bounds(arrays, found, EPSILON)[0], gradients(positive, found)
    assert np.allclose(output_bounds(arrays, found)[0], output(positive, found), rtol=1e-12)
    for name in sizes.keys() - {"offset_grad"}:
        assert np.allclose(sizes[name], expected[name], rtol=1e-12, atol=1e-13), name
    assert np.all(sizes["offset_grad"] >= np.abs(expected["offset_grad"]) - 1e-12)


@pytest.mark.parametrize("block", [1, 5, 1 << 15])
def test_rows_are_summed_there_and_back(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What samples read and what they add is what a loop over them says; places that are not there take nothing."""
    monkeypatch.setattr(rows, "BLOCK", block)
    rng = np.random.default_rng(3)
    size, count, width = 11, 40, 3
    image = np.vstack([rng.standard_normal((size, width)), np.zeros(width)])
    places = np.minimum(rng.integers(0, size + 4, (count, CORNERS)), size)
    weights, factor, given = rng.random((count, CORNERS)), rng.random(count), rng.standard_normal((count, width))
    (read,), products = blend(image[None], places[None], [(weights[None], factor[None])], given[None])
    added = np.zeros_like(image)
    for sample, corner in np.ndindex(count, CORNERS):
        place = places[sample, corner]
        added[place] += weights[sample, corner] * given[sample]
        assert products[0, sample, corner] == pytest.approx(image[place] @ given[sample])
    assert np.allclose(read[0], factor[:, None] * np.einsum("skc,sk->sc", image[places], weights))
    assert np.allclose(RowScatter(places, size)(given, weights), added[:size])


def test_pixels_that_are_not_read_receive_nothing() -> None:
    """A gradient that is not a number reaches the pixels that its samples read, and no other."""
    case = CASES[0]("float64", OP)
    arrays = scattered(case, 1).wide
    arrays["offset"][...] = 1e6
    arrays["out_grad"].reshape(-1)[:] = np.nan
    found = geometry(arrays["x"].shape, arrays["filter"].shape, case.params)
    assert not np.any(gradients(arrays, found)["x_grad"])
