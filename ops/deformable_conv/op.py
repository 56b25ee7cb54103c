"""Definition of deformable_conv (v1 without a mask, v2 with one) and deformable_conv_grad.

    out[n, o, h, w] = sum over c in o's group, taps (i, j) of
        filter[o, c, i, j] mask[n, g, ij, h, w] X(n, c, h sh - ph + i dh + dy, w sw - pw + j dw + dx)

with g = c // (C / deformable_groups), (dy, dx) = offset[n, g, 2 ij : 2 ij + 2, h, w] (rows first) and X
bilinear. A sample strictly inside (-1, H) x (-1, W) is interpolated with corners outside the
image taken as 0; any other sample, or NaN coordinate, is 0. The mathematics is in
`opgauge.ops.deformable_conv.reference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opgauge.ops._core.dtype import accumulator_info, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import accumulated_limits, flushed, sum_bounds
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register
from opgauge.ops.deformable_conv.bounds import PAIR, UNITS, lost_products, small_values, with_partial, wobbles
from opgauge.ops.deformable_conv.propose import propose
from opgauge.ops.deformable_conv.reference import (
    gradient_bounds,
    gradients,
    output,
    output_bounds,
)
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

PerAxis = int | tuple[int, ...]
RANK = 4
DTYPES = ("float16", "bfloat16", "float32", "float64")
"""Supported dtypes."""


@dataclass(frozen=True, slots=True)
class DeformableConvParams:
    """Parameters of deformable_conv; strides, paddings and dilations are one number or (rows, columns).

    im2col_step: images that an implementation with a column buffer unfolds at once. It never
    changes the result.
    """

    strides: PerAxis = 1
    paddings: PerAxis = 0
    dilations: PerAxis = 1
    deformable_groups: int = 1
    groups: int = 1
    im2col_step: int = 1

    def __post_init__(self) -> None:
        make_plain(self)
        least = {
            "strides": 1,
            "paddings": 0,
            "dilations": 1,
            "deformable_groups": 1,
            "groups": 1,
            "im2col_step": 1,
        }
        for name, bottom in least.items():
            value = getattr(self, name)
            entries = value if isinstance(value, tuple) else (value,)
            if isinstance(value, tuple) and len(value) != PAIR:
                msg = f"{name} {list(value)} has {len(value)} entries; it takes one number or two"
                raise ParameterError(msg)
            if min(entries) < bottom:
                msg = f"{name} {value} is below {bottom}"
                raise ParameterError(msg)


@dataclass(frozen=True, slots=True)
class DeformableConvGradParams(DeformableConvParams):
    """Parameters of the forward op, and the gradients to compute."""

    need_x: bool = True
    need_offset: bool = True
    need_filter: bool = True
    need_mask: bool = True


def _pair(value: PerAxis) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def geometry(x: Shape, filter_shape: Shape, params: DeformableConvParams) -> SamplingGeometry:
    """The convolution in numbers; raises ShapeError if shapes and parameters do not match."""
    if len(x) != RANK or len(filter_shape) != RANK:
        msg = f"x {list(x)} and filter {list(filter_shape)} must both have rank {RANK}"
        raise ShapeError(msg)
    (batch, channels, *size), (out_channels, per_group, *kernel) = x, filter_shape
    if 0 in filter_shape:
        msg = f"filter {list(filter_shape)} has no {'taps' if 0 in kernel else 'channels'}"
        raise ShapeError(msg)
    if 0 in size:
        msg = f"x {list(x)} has no pixels"
        raise ShapeError(msg)
    groups, deformable_groups = params.groups, params.deformable_groups
    if per_group * groups != channels:
        msg = f"filter has {per_group} channels per group; x has {channels} in {groups} groups"
        raise ShapeError(msg)
    if out_channels % groups:
        msg = f"filter has {out_channels} outputs, which {groups} groups do not divide"
        raise ShapeError(msg)
    if channels % deformable_groups:
        msg = f"x has {channels} channels, which {deformable_groups} deformable groups do not divide"
        raise ShapeError(msg)
    if batch > params.im2col_step and batch % params.im2col_step:
        msg = f"im2col_step {params.im2col_step} does not divide the batch of {batch}"
        raise ShapeError(msg)
    strides, paddings, dilations = _pair(params.strides), _pair(params.paddings), _pair(params.dilations)
    out_size = [
        (length + 2 * p - (d * (k - 1) + 1)) // s + 1
        for length, p, d, k, s in zip(size, paddings, dilations, kernel, strides, strict=True)
    ]
    if min(out_size) <= 0:
        msg = f"the convolution of {list(x)} by {list(filter_shape)} has no output: {out_size}"
        raise ShapeError(msg)
    return SamplingGeometry(
        batch,
        channels,
        (size[0], size[1]),
        out_channels,
        (kernel[0], kernel[1]),
        (out_size[0], out_size[1]),
        strides,
        paddings,
        dilations,
        deformable_groups,
        groups,
    )


def _inputs(shapes: Mapping[str, Shape], dtype: str, found: SamplingGeometry) -> dict[str, TensorSpec]:
    expected = {"offset": found.offset_shape, "mask": found.mask_shape}
    for name, shape in expected.items():
        if shapes.get(name, shape) != shape:
            msg = f"{name} is {list(shapes[name])}; it must be {list(shape)}"
            raise ShapeError(msg)
    names = ["x", "offset", "filter"] + (["mask"] if "mask" in shapes else [])
    given = {"x": shapes["x"], "filter": shapes["filter"], **expected}
    return {name: TensorSpec(given[name], dtype) for name in names}


def infer(shapes: Mapping[str, Shape], dtype: str, params: DeformableConvParams) -> Shapes:
    """Shape rule: x (N, C, H, W), filter (Co, C / groups, kh, kw), offset, optional mask, to (N, Co, Ho, Wo)."""
    found = geometry(shapes["x"], shapes["filter"], params)
    return Shapes(_inputs(shapes, dtype, found), {"out": TensorSpec(found.out_shape, dtype)})


def infer_grad(shapes: Mapping[str, Shape], dtype: str, params: DeformableConvGradParams) -> Shapes:
    """Shape rule of the forward op, with out_grad derived; the requested gradients have the inputs' shapes."""
    found = geometry(shapes["x"], shapes["filter"], params)
    inputs = _inputs(shapes, dtype, found)
    wanted = {
        "x": params.need_x,
        "offset": params.need_offset,
        "filter": params.need_filter,
        "mask": params.need_mask and "mask" in inputs,
    }
    outputs = {f"{name}_grad": inputs[name] for name, want in wanted.items() if want}
    if not outputs:
        msg = "no gradient is wanted"
        raise ParameterError(msg)
    if shapes.get("out_grad", found.out_shape) != found.out_shape:
        msg = f"out_grad is {list(shapes['out_grad'])}; it must be {list(found.out_shape)}"
        raise ShapeError(msg)
    return Shapes({**inputs, "out_grad": TensorSpec(found.out_shape, dtype)}, outputs)


def _found(arrays: Mapping[str, Array], params: DeformableConvParams) -> SamplingGeometry:
    return geometry(arrays["x"].shape, arrays["filter"].shape, params)


def reference(arrays: Mapping[str, Array], params: DeformableConvParams) -> dict[str, Array]:
    """Float64, image by image."""
    return {"out": output(arrays, _found(arrays, params))}


def reference_grad(arrays: Mapping[str, Array], params: DeformableConvGradParams) -> dict[str, Array]:
    """Float64, image by image; at whole coordinates the derivative to the right."""
    found = gradients(arrays, _found(arrays, params))
    return {name: found[name] for name in _wanted(found, params)}


def _wanted(found: Mapping[str, Array], params: DeformableConvGradParams) -> list[str]:
    return [name for name in found if getattr(params, f"need_{name.removesuffix('_grad')}")]


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: DeformableConvParams, dtype: str
) -> dict[str, Array | float]:
    """Rounding of a long sum, of coordinates (independent from sample to sample) and of 16-bit columns."""
    magnitude, wobble = output_bounds(arrays, _found(arrays, params))
    epsilon = accumulator_info(dtype).epsilon
    allowed = UNITS * epsilon / 2 * magnitude + wobbles(dtype) * epsilon * wobble + flushed(outputs["out"], dtype)
    weights, tiny = np.abs(arrays["filter"]), accumulated_limits(dtype)[0]
    allowed = allowed + tiny * (weights[0].size + weights.sum(axis=(1, 2, 3)))[:, None, None]
    for changed in small_values(arrays, dtype):
        allowed = allowed + output_bounds(changed, _found(arrays, params))[0]
    if dtype_info(dtype).itemsize == PAIR:
        terms = weights.sum(axis=(1, 2, 3))[:, None, None]
        allowed = allowed + dtype_info(dtype).epsilon * magnitude + dtype_info(dtype).subnormal / 2 * terms
    bounds = sum_bounds("out", allowed, magnitude, accumulated_limits(dtype)[1])
    return with_partial(bounds, arrays, _found(arrays, params), dtype)


def bound_grad(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: DeformableConvGradParams, dtype: str
) -> dict[str, Array | float]:
    """Rounding of long sums (two in sequence except for the filter), of coordinates, of 16-bit columns."""
    epsilon = accumulator_info(dtype).epsilon
    magnitudes, wobble = gradient_bounds(arrays, _found(arrays, params), epsilon)
    changes = [*small_values(arrays, dtype), *lost_products(arrays, dtype)]
    small = [gradient_bounds(changed, _found(arrays, params), epsilon)[0] for changed in changes]
    held = dtype_info(dtype).epsilon if dtype_info(dtype).itemsize == PAIR else 0.0
    chained = {"filter_grad": 0.5}
    bounds: dict[str, Array | float] = {}
    for name in _wanted(magnitudes, params):
        size = magnitudes[name]
        error = (UNITS * epsilon * chained.get(name, 1.0) + held) * size + wobbles(dtype) * epsilon * wobble[name]
        error = error + flushed(outputs[name], dtype) + accumulated_limits(dtype)[0] * arrays["out_grad"].size
        error = sum((one[name] for one in small), error)
        if held and name == "filter_grad":
            terms = np.abs(arrays["out_grad"]).sum(axis=(0, 2, 3))[:, None, None, None]
            error = error + dtype_info(dtype).subnormal / 2 * terms
        bounds |= sum_bounds(name, error, size, accumulated_limits(dtype)[1])
    return with_partial(bounds, arrays, _found(arrays, params), dtype)


def work(shapes: Shapes, params: DeformableConvParams) -> Work:
    """Every tensor once; the product, and eight operations per sample."""
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    flops = found.product_flops + 8 * found.samples
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), flops)


def work_grad(shapes: Shapes, params: DeformableConvGradParams) -> Work:
    """Every tensor once; a product for the columns' gradient, one for the filter's, thirty operations per sample."""
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    columns = params.need_x or params.need_offset or "mask_grad" in shapes.outputs
    products = int(columns) + int(params.need_filter)
    flops = products * found.product_flops + 30 * found.samples
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), flops)


_INPUTS = (
    Input("x", doc="(N, C, H, W)"),
    Input("offset", required=False, doc="(N, 2 dg kh kw, Ho, Wo), rows before columns"),
    Input("filter", doc="(Co, C / groups, kh, kw)"),
    Input("mask", required=False, kind="uniform", low=0.0, high=1.0, doc="(N, dg kh kw, Ho, Wo); v2"),
)
_ERRATA = (
    "im2col_step > 1 gave a wrong layout when the document was written, and still does in Paddle's gradient",
    "the channels that deformable_groups must divide are those of x, not of the output",
    "calling a BLAS from inside a kernel is not possible with cuBLAS's host API",
    "the 65 % of the profile is the matrix product, row 1",
)

DEFORMABLE_CONV = register(
    Op(
        name="deformable_conv",
        params=DeformableConvParams,
        dtypes=DTYPES,
        inputs=_INPUTS,
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        propose=propose,
        summary="convolution whose samples are displaced by learned offsets (v1), and weighted (v2)",
        source="Paddle deformable_conv; design document of 2022-08-23",
        errata=_ERRATA,
    )
)
"""The registered op."""

DEFORMABLE_CONV_GRAD = register(
    Op(
        name="deformable_conv_grad",
        params=DeformableConvGradParams,
        dtypes=DTYPES,
        inputs=(*_INPUTS, Input("out_grad", required=False, doc="(N, Co, Ho, Wo)")),
        outputs=("x_grad", "offset_grad", "filter_grad", "mask_grad"),
        infer=infer_grad,
        reference=reference_grad,
        work=work_grad,
        bound=bound_grad,
        propose=propose,
        summary="gradients of deformable_conv with respect to x, offset, filter and mask",
        source="Paddle deformable_conv_grad; design document of 2022-08-23",
        errata=_ERRATA,
    )
)
"""The registered op."""
