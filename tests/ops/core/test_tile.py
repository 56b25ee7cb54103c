"""Squares of lanes, turned; products of tiles."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
    ],
)
def test_a_square_of_lanes_is_turned_and_its_surroundings_left(dtype: Any, wide: Any) -> None:
    """Element (i, j) becomes (j, i) as a number, and nothing outside the square is written."""
    from numba import njit

    from opgauge.ops._cpu.jit import storage
    from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES, turn

    lanes = LANES_BYTES // np.dtype(wide).itemsize

    @njit  # type: ignore[untyped-decorator]
    def run(given: Any, out: Any) -> None:
        turn(given, 2 * 20 + 3, 20, out, 24 + 1, 24)

    given = np.arange(400).astype(dtype)  # bfloat16 holds integers up to 256, and rounds the rest alike
    out = np.full(24 * 24, -1, wide)
    run(storage(given), out)
    expected = np.full((24, 24), -1, wide)
    expected[1 : 1 + lanes, 1 : 1 + lanes] = given.reshape(20, 20)[2 : 2 + lanes, 3 : 3 + lanes].astype(wide).T
    np.testing.assert_array_equal(out.reshape(24, 24), expected)


@pytest.mark.parametrize("in_assembly", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tile_is_a_sum_of_products(monkeypatch: pytest.MonkeyPatch, dtype: Any, *, in_assembly: bool) -> None:
    """Rows and steps may lie anywhere; numbers are whole, so that sums are exact; what is around the tile is left."""
    from numba import njit

    from opgauge.ops._cpu.tile import jit as tile

    if in_assembly and not tile.IN_ASSEMBLY:
        pytest.skip("not on this processor")
    monkeypatch.setattr(tile, "IN_ASSEMBLY", in_assembly)
    product = tile.multiply_tile
    a_row, a_step, b_step, out_row = 11, 2, 37 * 2, 67

    @njit  # type: ignore[untyped-decorator]
    def run(a: Any, b: Any, out: Any, depth: int) -> None:
        product(a, 3, a_row, a_step, b, 5, b_step, depth, out, 2, out_row)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, 1000).astype(dtype) for _ in range(2))
    rows, columns = tile.ROWS, tile.VECTORS * tile.VECTOR_BYTES // a.itemsize
    for depth in (0, 1, 7):
        out = rng.integers(-9, 9, rows * out_row + columns).astype(dtype)
        expected = out.copy()
        for row in range(rows):
            for column in range(columns):
                terms = (a[3 + row * a_row + k * a_step] * b[5 + k * b_step + column] for k in range(depth))
                expected[2 + row * out_row + column] += sum(terms)
        run(a, b, out, depth)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("in_assembly", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tile_of_listed_vectors(monkeypatch: pytest.MonkeyPatch, dtype: Any, *, in_assembly: bool) -> None:
    """Vectors may lie anywhere; numbers are whole, so that sums are exact; what is around the tile is left."""
    from numba import njit

    from opgauge.ops._cpu.tile import jit as tile

    if in_assembly and not tile.IN_ASSEMBLY:
        pytest.skip("not on this processor")
    monkeypatch.setattr(tile, "IN_ASSEMBLY", in_assembly)
    product, out_row = tile.multiply_listed, 67

    @njit  # type: ignore[untyped-decorator]
    def run(a: Any, b: Any, places: Any, out: Any, depth: int, adds: Any) -> None:
        product(a, 3, b, 5, places, 2, depth, out, 2, out_row, adds)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, 200).astype(dtype) for _ in range(2))
    rows, columns = tile.LISTED_ROWS, tile.LISTED_VECTORS * tile.VECTOR_BYTES // a.itemsize
    places = rng.integers(0, 100, 9)
    for depth, adds in itertools.product((0, 1, 7), (False, True)):
        out = rng.integers(-9, 9, rows * out_row + columns).astype(dtype)
        expected = out.copy()
        for row, column in itertools.product(range(rows), range(columns)):
            terms = (a[3 + k * rows + row] * b[5 + places[2 + k] + column] for k in range(depth))
            place = 2 + row * out_row + column
            expected[place] = sum(terms) + (expected[place] if adds else 0)
        run(a, b, places, out, depth, adds)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("nbytes", [32, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_block_is_a_sum_of_products_of_vectors(dtype: Any, nbytes: int) -> None:
    """Rows share factors, columns values; numbers are whole, so that sums are exact; what is around it is left."""
    from numba import njit

    from opgauge.ops._cpu.tile import jit_block as blocks

    @njit  # type: ignore[untyped-decorator]
    def run(given: Any, factors: Any, out: Any, steps: int) -> tuple[int, int, int]:
        sums = blocks.zeros(out, 3, 2, nbytes)
        for step in range(steps):
            sums = blocks.multiply_onto(sums, given, 1 + 5 * step, 21, factors, 2 + 7 * step, 19)
        blocks.store_block(out, 3, 60, 30, sums)
        return blocks.rows_of(sums), blocks.columns_of(sums), blocks.width_of(sums)

    rng = np.random.default_rng(0)
    given, factors = (rng.integers(-8, 9, 100).astype(dtype) for _ in range(2))
    out, lanes, steps = np.full(200, -1, dtype), nbytes // np.dtype(dtype).itemsize, 4
    assert run(given, factors, out, steps) == (3, 2, lanes)
    expected = np.full(200, -1, dtype)
    for row in range(3):
        for column in range(2):
            values = [given[1 + 5 * step + 21 * row :][:lanes] for step in range(steps)]
            by = [factors[2 + 7 * step + 19 * column :][:lanes] for step in range(steps)]
            expected[3 + 60 * row + 30 * column :][:lanes] = np.sum(np.multiply(values, by), axis=0)
    np.testing.assert_array_equal(out, expected)
