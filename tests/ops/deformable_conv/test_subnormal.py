"""Bounds of deformable_conv where 16-bit columns are subnormal: their rounding is absolute there."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs
from opgauge.ops._core.dtype import dtype_info
from tests.ops.attempts import Array, inputs_of, passes
from tests.ops.deformable_conv.shapes import convolution

DTYPES = ("float16",)
"""Not bfloat16: its subnormals are those of float32, which composites may flush, a dropped channel with them."""


def tiny(op: str, dtype: str) -> tuple[Case, Inputs]:
    """A 1x1 convolution without offsets, whose columns are 2 to 20 times the smallest subnormal."""
    case = convolution(op, dtype, (2, 3, 5, 4), (4, 3, 1, 1), mask=True)
    random = np.random.default_rng(7)
    x = random.integers(10, 21, case.shapes["x"]) * dtype_info(dtype).subnormal
    return case, inputs_of(case, x=x, offset=np.zeros((2, 2, 5, 4)), mask=random.uniform(0.2, 0.9, (2, 1, 5, 4)))


def columns_of(inputs: Inputs, dtype: str) -> Array:
    """Columns, rounded to the dtype."""
    exact = inputs.wide["x"] * inputs.wide["mask"]
    return exact.astype(dtype_info(dtype).numpy).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_columns_are_within_the_bound(dtype: str) -> None:
    """An output from columns in 16 bits is right; without one channel it is wrong."""
    case, inputs = tiny("deformable_conv", dtype)
    columns, weight = columns_of(inputs, dtype), inputs.wide["filter"][:, :, 0, 0]
    assert passes(case, inputs, out=np.einsum("oc,nchw->nohw", weight, columns))
    for channel in range(3):
        kept = columns * (np.arange(3) != channel)[:, None, None]
        assert not passes(case, inputs, out=np.einsum("oc,nchw->nohw", weight, kept))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_from_rounded_columns_is_within_the_bound(dtype: str) -> None:
    """The filter's gradient from columns in 16 bits is right; without one row of pixels it is wrong."""
    case, inputs = tiny("deformable_conv_grad", dtype)
    columns, grad, weight = columns_of(inputs, dtype), inputs.wide["out_grad"], inputs.wide["filter"][:, :, 0, 0]
    column_grad = np.einsum("oc,nohw->nchw", weight, grad)
    outputs = {
        "x_grad": column_grad * inputs.wide["mask"],
        "mask_grad": np.sum(column_grad * inputs.wide["x"], axis=1),
        "offset_grad": expected_offset_grad(inputs.wide["x"], column_grad * inputs.wide["mask"]),
    }
    assert passes(case, inputs, filter_grad=np.einsum("nohw,nchw->oc", grad, columns), **outputs)
    for row in range(5):
        kept = columns * (np.arange(5) != row)[:, None]
        assert not passes(case, inputs, filter_grad=np.einsum("nohw,nchw->oc", grad, kept), **outputs)


def expected_offset_grad(x: Array, moved: Array) -> Array:
    """Derivatives to the right at whole coordinates: differences of neighbours, 0 outside the image."""
    padded = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)))
    down, right = padded[:, :, 1:, :-1] - x, padded[:, :, :-1, 1:] - x
    return np.stack([np.sum(moved * down, axis=1), np.sum(moved * right, axis=1)], axis=1)
