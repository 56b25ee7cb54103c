"""The CPU kernels of p_norm and its gradient against the reference: any shape, axis, order and dtype."""

from __future__ import annotations

import platform
from math import inf, nan, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import float32, int64

from opgauge.ops import FLOATS, OpError, dtype_info, find_kernel
from opgauge.ops.p_norm.jit_grad import BELOW_ONE, GENERAL, HALVES, LINEAR, QUADRATIC, loop_over_elements
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of, ours, outputs_of, passes

ORDERS = (-inf, -2.5, -1.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 2.2, 2.5, 3.0, 5.0, 7.5, -4.0, inf, "fro")
LENGTHS = (1, 2, 3, 7, 8, 31, 33, 250, 257)
IMPLEMENTATIONS = ("baseline", "optimized")
LONG = 10_007
PLANNED = (0.5, 1.0, 1.5, 2.0, 3.0, "fro")


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, bool]:
    """A shape of rank 1 to 4 with few elements, an axis or two or none, and keepdim."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.sampled_from((1, 2, 3, 5, 17))) for _ in range(rank))
    shape = shape if prod(shape) <= 4000 else shape[:2]
    place = st.integers(-len(shape), len(shape) - 1)
    pair = st.tuples(place, place).filter(lambda both: (both[0] - both[1]) % len(shape) != 0)
    choices: list[st.SearchStrategy[Any]] = [place, st.none(), *([pair] if len(shape) > 1 else [])]
    return shape, draw(st.one_of(choices)), draw(st.booleans())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
@settings(max_examples=50)
@given(
    problem=problems(),
    porder=st.sampled_from(ORDERS),
    dtype=st.sampled_from(drawn_of("p_norm", FLOATS)),
    seed=st.none() | st.integers(0, 1000),
)
def test_any_problem(op: str, implementation: str, problem: Any, porder: Any, dtype: str, seed: int | None) -> None:
    """Right outputs for any shape, axes, order and dtype, with zeros and ties among the inputs or without."""
    shape, axis, keepdim = problem
    try:
        case = case_of(op, {"x": shape}, dtype, porder=porder, axis=axis, keepdim=keepdim)
    except OpError:  # order 0 over two axes
        return
    given_x = {} if seed is None else {"x": np.random.default_rng(seed).integers(-3, 4, shape)}
    assert not complaint(case, inputs_of(case, **given_x), implementation)


@pytest.mark.parametrize("porder", [-inf, 0.0, 1.0, 2.5, inf])
@pytest.mark.parametrize(
    "shape", [(3, 700, 3), (1, 401, 7), (2, 6, 5), (2, 300, 64), (2, 300, 65), (16, 3, 5), (700, 2, 64), (2001, 7, 3)]
)
def test_narrow_columns(shape: tuple[int, ...], porder: float) -> None:
    """Several rows are added at a time: whole runs and rests, few rows and many, columns that fit and do not."""
    for dtype in drawn_of("p_norm", FLOATS):
        case = case_of("p_norm", {"x": shape}, dtype, porder=porder, axis=1)
        assert not complaint(case, inputs_of(case), "optimized"), dtype


@pytest.mark.parametrize("porder", [porder for porder in ORDERS if porder != "fro"])
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 1, 9), 1), ((47, 1), 1)])
def test_norms_of_single_elements(op: str, porder: float, shape: tuple[int, ...], axis: int) -> None:
    """Along an axis of one element, magnitudes, or for porder 0 whether it is other than zero; and their gradients."""
    for dtype in drawn_of("p_norm", FLOATS):
        case = case_of(op, {"x": shape}, dtype, porder=porder, axis=axis)
        x = np.linspace(-2, 2, int(np.prod(shape)))
        assert not complaint(case, inputs_of(case, x=x), "optimized"), dtype


@pytest.mark.parametrize("porder", [inf, -inf])
@pytest.mark.parametrize("special", [nan, -nan, inf, -inf, 0.0, -0.0])
def test_extremes_are_those_of_numpy(porder: float, special: float) -> None:
    """The largest and the smallest magnitude of rows with one special value, and of rows of nothing else."""
    for dtype in drawn_of("p_norm", FLOATS):
        x = np.random.default_rng(5).standard_normal((4, 37)).astype(dtype_info(dtype).numpy)
        x[1, 30], x[2, :] = special, special
        case = case_of("p_norm", {"x": x.shape}, dtype, porder=porder, axis=1)
        out = {"y": np.empty(4, x.dtype)}
        find_kernel("p_norm", "optimized", "cpu", dtype).bind({"x": x}, case.params, out, None)()
        wide = np.abs(x.astype(np.float64))
        expected = wide.max(axis=1) if porder > 0 else wide.min(axis=1)
        assert np.array_equal(out["y"].astype(np.float64), expected, equal_nan=True), dtype


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
def test_row_lengths(op: str, dtype: str, length: int) -> None:
    """Rows of every length, in memory aligned to an element only, leave their neighbours alone."""
    for porder in (2, 3, inf):
        case = case_of(op, {"x": (5, length)}, dtype, porder=porder)
        assert not complaint(case, inputs_of(case), "optimized", layout="offset")


@pytest.mark.parametrize("porder", [0.0, 1.0, 2.0, 2.2, inf, -inf])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, LONG), 1), ((LONG, 3), 0), ((LONG,), None), ((3, 101, 2, 103), (1, 3))]
)
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
def test_long_reductions(op: str, shape: tuple[int, ...], axis: Any, porder: float) -> None:
    """Reductions longer than a block, along rows, columns, everything and two axes apart."""
    if isinstance(axis, tuple) and porder == 0:
        return
    case = case_of(op, {"x": shape}, "float32", porder=porder, axis=axis)
    assert not complaint(case, inputs_of(case), "optimized")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("porder", ORDERS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_zeros_and_nan(implementation: str, porder: Any, dtype: str) -> None:
    """A row of zeros, a row with some, one with NaN and one with an infinity: masks hold, NaN goes no further."""
    x = np.random.default_rng(1).standard_normal((5, 33)) + 3
    x[1], x[2, ::3], x[3, 7] = 0, 0, nan
    for op in ("p_norm", "p_norm_grad"):
        case = case_of(op, {"x": x.shape}, dtype, porder=porder)
        assert not complaint(case, inputs_of(case, x=x), implementation)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("porder", [p for p in ORDERS if p != 0])
def test_an_infinity_is_no_stranger(porder: Any, dtype: str) -> None:
    """An infinite element has the norm and the gradient that the formula gives it."""
    x = np.random.default_rng(2).standard_normal((3, 33)) + 3
    x[1, 5] = -inf
    case = case_of("p_norm", {"x": x.shape}, dtype, porder=porder)
    assert not complaint(case, inputs_of(case, x=x), "optimized")
    grad = case_of("p_norm_grad", {"x": x.shape}, dtype, porder=porder)
    assert not complaint(grad, inputs_of(grad, x=x), "optimized")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("porder", [inf, -inf])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ties_share_evenly(implementation: str, porder: float, dtype: str) -> None:
    """250 elements of one magnitude get a 250th of dy each."""
    case = case_of("p_norm_grad", {"x": (2, 250)}, dtype, porder=porder)
    signs = np.where(np.arange(500) % 3 == 0, -1.0, 1.0).reshape(2, 250)
    inputs = inputs_of(case, x=2 * signs, dy=[1.0, 500.0])
    dx = outputs_of(case, inputs, implementation)["dx"].astype(np.float64)
    assert dx == pytest.approx(signs * [[1 / 250], [2.0]], rel=dtype_info(dtype).epsilon)


@pytest.mark.parametrize("porder", [2, 3, 1.5])
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "three_kernel"])
def test_zeros_in_float16_need_a_mask(implementation: str, porder: float) -> None:
    """x = y = 0 in float16, where 1e-12 is 0, gives 0 and not NaN."""
    case = case_of("p_norm_grad", {"x": (3, 8)}, "float16", porder=porder)
    dx = outputs_of(case, inputs_of(case, x=np.zeros((3, 8)), dy=[1.0, 2.0, 3.0]), implementation)["dx"]
    assert not dx.astype(np.float64).any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "float64"])
def test_subnormals_count(dtype: str) -> None:
    """Order 0 counts subnormal numbers; the largest and smallest magnitude may be one."""
    tiny = float(np.finfo(np.float64).smallest_subnormal) if dtype == "float64" else 2.0**-133
    tiny = 2.0**-24 if dtype == "float16" else tiny
    x = np.array([[tiny, 0, -tiny, 0], [-tiny, tiny, tiny, tiny]])
    for porder, expected in ((0, [2, 4]), (inf, [tiny, tiny]), (-inf, [0, tiny])):
        case = case_of("p_norm", {"x": x.shape}, dtype, porder=porder)
        y = outputs_of(case, inputs_of(case, x=x), "optimized")["y"].astype(np.float64)
        assert y.tolist() == expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("porder", [-1.0, -0.5, 0.1, 0.5, 0.9])
def test_gradients_below_order_1_near_subnormals(porder: float, implementation: str) -> None:
    """Elements near the smallest numbers, and zeros among them, have a gradient of the reference, not NaN."""
    x = [[1e-40, 1e-38, 1e-30, 1.0, 0.0, -1e-44, 2e-38], [1e-40, 1e-38, 1e-30, 1.0, 2.0, -1e-44, 2e-38]]
    case = case_of("p_norm_grad", {"x": (2, 7)}, "float32", porder=porder)
    assert complaint(case, inputs_of(case, x=x), implementation) == ""


@pytest.mark.parametrize("porder", [0, 1, 2, 2.2, 3, inf, -inf])
@pytest.mark.parametrize("shape", [(3, 0), (0, 5), (0,), (2, 0, 3)])
def test_empty(shape: tuple[int, ...], porder: float) -> None:
    """Nothing to reduce gives 0, nothing to write writes nothing."""
    for implementation in IMPLEMENTATIONS:
        for op in ("p_norm", "p_norm_grad"):
            case = case_of(op, {"x": shape}, "float32", porder=porder)
            assert not complaint(case, inputs_of(case), implementation)


def test_a_count_is_exact_beyond_float32() -> None:
    """Order 0 counts in integers or float64: 2^24 + 3 elements are not 2^24."""
    size = 2**24 + 3
    case = case_of("p_norm", {"x": (size,)}, "float32", porder=0)
    inputs = {"x": np.ones(size, np.float32)}
    from opgauge.harness.worker.inputs import Inputs

    y = outputs_of(case, Inputs(inputs), "optimized")["y"]
    assert float(y) == float(np.float32(size))


@pytest.mark.parametrize("porder", [2, 3, 4])
def test_the_norm_overflows_where_numpys_does(porder: int) -> None:
    """In float32 a sum of powers beyond the largest number gives inf, or what is right if summed wider."""
    case = case_of("p_norm", {"x": (2, 4)}, "float32", porder=porder)
    inputs = inputs_of(case, x=[[1e25] * 4, [1.0] * 4])
    for implementation in IMPLEMENTATIONS:
        assert not complaint(case, inputs, implementation)


@pytest.mark.parametrize("scale", [1e13, 1e-13, 1e-30, 1e30])
@pytest.mark.parametrize("porder", [1.5, 2, 2.2, 3, 4])
def test_the_gradient_survives_where_powers_overflow(porder: float, scale: float) -> None:
    """(|x| / y)^q is right in float32 where |x|^q or y^q alone is inf or 0."""
    x = np.random.default_rng(3).uniform(0.5, 2, (3, 33)) * scale
    case = case_of("p_norm_grad", {"x": x.shape}, "float32", porder=porder)
    assert not complaint(case, inputs_of(case, x=x), "optimized")


@pytest.mark.parametrize("porder", PLANNED)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, None, (0, 2)])
def test_the_documents_plan(axis: Any, dtype: str, porder: Any) -> None:
    """The design document's three kernels, exponent corrected, are right away from overflow."""
    assert "three_kernel" in ours("p_norm_grad")
    case = case_of("p_norm_grad", {"x": (3, 5, 7)}, dtype, porder=porder, axis=axis)
    kernel = complaint(case, inputs_of(case), "three_kernel")
    assert not kernel


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("implementation", ["torch", "torch_compile"])
@pytest.mark.parametrize("porder", [0, 1, 2, 3, 2.5, inf, -inf])
def test_peers_compute_the_same_op(implementation: str, porder: float) -> None:
    """The peers that we are compared with give the same answers in float32."""
    if implementation == "torch_compile" and porder not in {3, inf}:
        return
    for op in ("p_norm", "p_norm_grad"):
        case = case_of(op, {"x": (3, 31)}, "float32", porder=porder)
        assert not complaint(case, inputs_of(case), implementation)


@pytest.mark.parametrize("porder", [2, 1, 0.5, 2.5, inf, -inf])
@pytest.mark.parametrize("implementation", ["baseline", "optimized"])
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
def test_three_separate_groups_of_axes(op: str, implementation: str, porder: float) -> None:
    """Axes in three groups that lie apart are one vector, whatever the order."""
    for dtype in drawn_of("p_norm", ("float16", "float32")):
        case = case_of(op, {"x": (3, 4, 5, 2, 7)}, dtype, axis=(0, 2, 4), porder=porder)
        assert not complaint(case, inputs_of(case), implementation)


@pytest.mark.parametrize("porder", [-1.5, 1, 2, 2.5, inf, -inf])
@pytest.mark.parametrize(
    "shape", [(1, 16, 40, 5, 5), (2, 3, 40, 2, 1), (2, 3, 40, 7, 1), (3, 70, 3, 2, 6), (1, 2, 3, 90, 2)]
)
def test_two_groups_of_axes(shape: tuple[int, ...], porder: float) -> None:
    """Norms are right where runs between the groups are short, so that the outer group comes first, and where long."""
    for dtype in drawn_of("p_norm", FLOATS):
        case = case_of("p_norm", {"x": shape}, dtype, axis=(1, 3), porder=porder)
        assert not complaint(case, inputs_of(case), "optimized"), dtype


@pytest.mark.parametrize("porder", [1, 2, 2.5])
@pytest.mark.parametrize("implementation", ["baseline", "optimized"])
def test_long_columns_are_summed_as_exactly_as_short_ones(implementation: str, porder: float) -> None:
    """Columns of more elements than may be added one by one in float32 stay within the bound."""
    case = case_of("p_norm", {"x": (200_000, 3)}, "float32", axis=0, porder=porder)
    assert not complaint(case, inputs_of(case, x=np.full((200_000, 3), 0.95)), implementation)


def test_a_sum_of_squares_that_overflows_may_be_infinite_and_nothing_else() -> None:
    """The norm of (1e20, 1, 1) may be 1e20 or infinite in float32: another finite number is wrong."""
    case = case_of("p_norm", {"x": (3,)}, "float32")
    inputs = inputs_of(case, x=np.array([1e20, 1, 1]))
    assert passes(case, inputs, y=1e20)
    assert passes(case, inputs, y=inf)
    assert not passes(case, inputs, y=-5.0)


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="names an instruction of x86")
@pytest.mark.parametrize("slope", [LINEAR, QUADRATIC, HALVES, GENERAL, BELOW_ONE])
def test_gradients_are_vectorised(slope: int) -> None:
    """One instruction divides several elements: a branch in the formula would make loops some 20 times as slow."""
    loop, many, number = loop_over_elements(slope), float32[::1], float32
    loop.compile((many, int64, int64, many, many, many, number))
    (code,) = loop.inspect_asm().values()
    assert "divps" in code
