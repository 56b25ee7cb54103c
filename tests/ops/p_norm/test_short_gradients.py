"""Gradients of p_norm on the CPU whose norms are copied, one for each element."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops import FLOATS
from opgauge.ops.p_norm import jit_grad
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of

SHAPES = [
    ((1300, 3), 0),
    ((400, 2, 7), 1),
    ((3, 700, 5), 1),
    ((900, 2, 7), (0, 2)),
    ((90, 30, 5), (0, 2)),
    ((7, 400, 30), (0, 2)),
    ((40, 3, 11, 4), (0, 2)),
    ((2, 500, 3, 2, 5), (1, 3)),
    ((300, 29), 1),
]
"""Norms that many rows have in turn, copied once, and others; the last ones end before a vector does."""


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_norms_of_short_rows_and_few_columns(shape: tuple[int, ...], axis: int | tuple[int, ...]) -> None:
    """Rows and columns of no whole vectors, over one group of axes and two."""
    for dtype in drawn_of("p_norm_grad", FLOATS):
        case = case_of("p_norm_grad", {"x": shape}, dtype, porder=3.0, axis=axis)
        assert not complaint(case, inputs_of(case), "optimized"), dtype


@pytest.mark.parametrize("pieces", [2, 3, 7])
@pytest.mark.parametrize("shape", [(1, 700, 1, 1, 5), (3, 150, 4, 2, 5), (4, 300, 1, 1, 2), (60, 2, 3, 2, 4)])
def test_pieces_begin_where_norms_do(shape: tuple[int, ...], pieces: int) -> None:
    """The parts of threads, whose norms in turn begin at the first one."""
    a, _, b, _, c = shape
    rng = np.random.default_rng(0)
    x, y, dy = rng.normal(size=shape), rng.uniform(1, 2, (a, 1, b, 1, c)), rng.normal(size=(a, 1, b, 1, c))
    dx = np.zeros_like(x)
    flat = (array.reshape(-1) for array in (x, y, dy, dx))
    jit_grad.grad_short.on(1)(*flat, shape, jit_grad.LINEAR, 1.0, c, pieces)
    assert np.allclose(dx, x / y * dy, rtol=1e-14)
