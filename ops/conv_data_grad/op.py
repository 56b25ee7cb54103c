"""Definition of conv_data_grad: the gradient of a convolution with respect to its input.

With stride s, padding p and dilation d, per spatial axis and per group:

    dx[n, c, h] = sum over o, i with (h + p - i d) divisible by s and inside dy of
                  dy[n, o, (h + p - i d) / s] filter[o, c, i]          (+ add_to_output[n, c, h])

`channels_first`: x (N, C, ...), filter (Co, C / groups, k...), dy (N, Co, ...).
`channels_last`:  x (N, ..., C), filter (Co, k..., C / groups), dy (N, ..., Co).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import MARGIN, accumulated_limits, flushed, overflowing, sum_bounds
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register
from opgauge.ops.conv_data_grad.propose import propose

PerAxis = int | tuple[int, ...]
UNITS = 32
"""Allowed rounding of a long sum, in half epsilons of sum |filter| |dy|: rejects TF32 (366), accepts float32 (24)."""


@dataclass(frozen=True, slots=True)
class ConvDataGradParams:
    """Parameters of conv_data_grad: one number for every spatial axis, or one for each."""

    strides: PerAxis = 1
    padding_before: PerAxis = 0
    dilation_rate: PerAxis = 1
    groups: int = 1
    data_format: Literal["channels_first", "channels_last"] = "channels_first"

    def __post_init__(self) -> None:
        make_plain(self)
        for name, least in (("strides", 1), ("padding_before", 0), ("dilation_rate", 1), ("groups", 1)):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,), default=least) < least:
                msg = f"{name} {value} is below {least}"
                raise ParameterError(msg)
        if self.data_format not in ("channels_first", "channels_last"):
            msg = f"Illegal value for data_format: {self.data_format!r}"
            raise ParameterError(msg)


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """The convolution in canonical form: channels first, one entry per spatial axis."""

    batch: int
    channels: int
    out_channels: int
    groups: int
    size: Shape
    out_size: Shape
    kernel: Shape
    strides: Shape
    padding: Shape
    dilation: Shape
    channels_last: bool

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a 1x1 convolution without stride or padding: one matrix product."""
        return {*self.kernel, *self.strides} == {1} and not any(self.padding)


def three(values: Shape, fill: int) -> tuple[int, int, int]:
    """Values for three spatial axes: `fill` for each missing axis, in front."""
    padded = (fill,) * (3 - len(values)) + tuple(values)
    return (padded[0], padded[1], padded[2])


def _per_axis(value: PerAxis, rank: int, name: str) -> Shape:
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        msg = f"{name} {list(value)} has {len(value)} entries for {rank} spatial axes"
        raise ParameterError(msg)
    return tuple(value)


def geometry(x: Shape, filter_shape: Shape, params: ConvDataGradParams) -> ConvGeometry:
    """The convolution that maps x and filter to dy; raises ShapeError if it does not exist."""
    rank = len(x) - 2
    if rank not in (1, 2, 3):
        msg = f"x_like {list(x)} has {rank} spatial axes; 1 to 3 are supported"
        raise ShapeError(msg)
    if len(filter_shape) != len(x):
        msg = f"filter {list(filter_shape)} has rank {len(filter_shape)}, x_like has {len(x)}"
        raise ShapeError(msg)
    last = params.data_format == "channels_last"
    channels, size = (x[-1], x[1:-1]) if last else (x[1], x[2:])
    per_group, kernel = (filter_shape[-1], filter_shape[1:-1]) if last else (filter_shape[1], filter_shape[2:])
    if per_group * params.groups != channels:
        msg = f"filter has {per_group} channels per group; x_like has {channels} in {params.groups} groups"
        raise ShapeError(msg)
    if filter_shape[0] % params.groups:
        msg = f"filter has {filter_shape[0]} outputs, which {params.groups} groups do not divide"
        raise ShapeError(msg)
    if 0 in filter_shape:
        msg = f"filter {list(filter_shape)} has no {'taps' if 0 in kernel else 'channels'}"
        raise ShapeError(msg)
    if 0 in size:
        msg = f"x_like {list(x)} has no pixels"
        raise ShapeError(msg)
    strides = _per_axis(params.strides, rank, "strides")
    padding = _per_axis(params.padding_before, rank, "padding_before")
    given = _per_axis(params.dilation_rate, rank, "dilation_rate")
    dilation = tuple(d if k > 1 else 1 for d, k in zip(given, kernel, strict=True))  # a single tap has none
    out_size = tuple(
        (length + 2 * p - (d * (k - 1) + 1)) // s + 1
        for length, p, d, k, s in zip(size, padding, dilation, kernel, strides, strict=True)
    )
    if min(out_size) <= 0:
        msg = f"the convolution of {list(x)} by {list(filter_shape)} has no output: {list(out_size)}"
        raise ShapeError(msg)
    return ConvGeometry(
        x[0],
        channels,
        filter_shape[0],
        params.groups,
        size,
        out_size,
        kernel,
        strides,
        padding,
        dilation,
        last,
    )


def infer(shapes: Mapping[str, Shape], dtype: str, params: ConvDataGradParams) -> Shapes:
    """Shape rule: x_like and filter, with dy derived, to dx of x_like's shape. Raises ShapeError."""
    x, filter_shape = shapes["x_like"], shapes["filter"]
    found = geometry(x, filter_shape, params)
    spatial, channels = found.out_size, (found.out_channels,)
    dy = (x[0], *spatial, *channels) if found.channels_last else (x[0], *channels, *spatial)
    if shapes.get("dy", dy) != dy:
        msg = f"dy is {list(shapes['dy'])}; the convolution of x_like by filter gives {list(dy)}"
        raise ShapeError(msg)
    inputs = {
        "dy": TensorSpec(dy, dtype),
        "filter": TensorSpec(filter_shape, dtype),
        "x_like": TensorSpec(x, dtype),
    }
    if "add_to_output" in shapes:
        if shapes["add_to_output"] != x:
            msg = f"add_to_output is {list(shapes['add_to_output'])}, x_like is {list(x)}: they must agree"
            raise ShapeError(msg)
        inputs["add_to_output"] = TensorSpec(x, dtype)
    return Shapes(inputs, {"dx": TensorSpec(x, dtype)})


def reference(arrays: Mapping[str, Array], params: ConvDataGradParams) -> dict[str, Array]:
    """Float64, tap by tap."""
    found = geometry(arrays["x_like"].shape, arrays["filter"].shape, params)
    dx = _by_tap(arrays["dy"], arrays["filter"], found)
    if "add_to_output" in arrays:
        dx = dx + arrays["add_to_output"]
    return {"dx": dx}


def _by_tap(dy: Array, weight: Array, found: ConvGeometry) -> Array:
    """Products of each tap with dy, scattered to the elements that the tap has read: one matrix product per tap."""
    per_group, channels = (found.groups, found.out_channels // found.groups), found.channels // found.groups
    pixels = prod(found.out_size)
    if found.channels_last:
        dy, weight = dy.reshape(found.batch, pixels, *per_group).transpose(0, 2, 3, 1), np.moveaxis(weight, -1, 1)
    else:
        dy = dy.reshape(found.batch, *per_group, pixels)
    weight = weight.reshape(*per_group, channels, *found.kernel)
    dx = np.zeros((found.batch, found.groups, channels, *found.size), dy.dtype)
    for tap in np.ndindex(*found.kernel):
        made = (weight[(..., *tap)].swapaxes(1, 2) @ dy).reshape(*dx.shape[:3], *found.out_size)
        into, given = reach_of(found, tap)
        dx[(..., *into)] += made[(..., *given)]
    dx = dx.reshape(found.batch, found.channels, *found.size)
    return np.ascontiguousarray(np.moveaxis(dx, 1, -1)) if found.channels_last else dx


def reach_of(found: ConvGeometry, tap: Shape) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Indices of dx that a tap has read, by axis, and those of the outputs that they belong to."""
    offsets = (i * d - p for i, d, p in zip(tap, found.dilation, found.padding, strict=True))
    into, given = zip(*map(_reach, offsets, found.strides, found.size, found.out_size), strict=True)
    return into, given


def _reach(offset: int, stride: int, length: int, out: int) -> tuple[slice, slice]:
    """Along an axis: indices stride o + offset inside `length`, and the o that they belong to."""
    first = max(0, -(offset // stride))
    end = max(first, min(out, (length - 1 - offset) // stride + 1))
    begin = stride * first + offset
    return slice(begin, begin + stride * (end - first), stride), slice(first, end)


def work(shapes: Shapes, params: ConvDataGradParams) -> Work:
    """Every tensor except x_like once; one multiply-add per tap, and one addition for the addend."""
    read = {name: spec for name, spec in shapes.inputs.items() if name != "x_like"}
    found = geometry(shapes.inputs["x_like"].shape, shapes.inputs["filter"].shape, params)
    products = (
        found.batch * prod(found.out_size) * found.out_channels * prod(found.kernel) * found.channels // found.groups
    )
    added = shapes.outputs["dx"].size if "add_to_output" in shapes.inputs else 0
    return Work(tensor_bytes(read), tensor_bytes(shapes.outputs), 2 * products + added)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: ConvDataGradParams, dtype: str
) -> dict[str, Array | float]:
    """A long sum in the accumulating dtype, in units of sum |filter| |dy|.

    With an addend, the sum may be rounded to the dtype before the addition, as in an unfused pair.
    """
    half_epsilon = accumulator_info(dtype).epsilon / 2
    _, largest = accumulated_limits(dtype)
    found = geometry(arrays["x_like"].shape, arrays["filter"].shape, params)
    size = _by_tap(np.abs(arrays["dy"]), np.abs(arrays["filter"]), found)
    small = _flushed(arrays, size, found, dtype) + flushed(outputs["dx"], dtype)
    if "add_to_output" not in arrays:
        return sum_bounds("dx", UNITS * half_epsilon * size + small, size, largest, partial(_signs, arrays, found))
    addend = arrays["add_to_output"]
    rounded = np.abs(outputs["dx"] - addend)
    allowed = UNITS * half_epsilon * size + 4 * half_epsilon * np.abs(addend) + dtype_info(dtype).epsilon * rounded
    allowed = allowed + small + flushed(addend, dtype)
    bounds = sum_bounds("dx", allowed, size + np.abs(addend), largest, partial(_signs, arrays, found))
    beyond = (rounded > dtype_info(dtype).largest * (1 - MARGIN)) & np.isfinite(rounded)
    if np.any(beyond):
        bounds = {"dx": overflowing(np.abs(bounds["dx"]), beyond | (np.asarray(bounds["dx"]) < 0))}
    return bounds


def _flushed(arrays: Mapping[str, Array], size: Array, found: ConvGeometry, dtype: str) -> Array:
    """Sum of the terms that may count as 0: those of small inputs, and products below the normal range."""
    dy, weight = arrays["dy"], arrays["filter"]
    small_dy, small_weight = flushed(dy, dtype), flushed(weight, dtype)
    total = np.full_like(size, accumulated_limits(dtype)[0] * weight.size)
    if np.any(small_dy):
        total += _by_tap(small_dy, np.abs(weight), found)
    if np.any(small_weight):
        total += _by_tap(np.abs(dy), small_weight, found)
    return total


def _signs(arrays: Mapping[str, Array], found: ConvGeometry) -> tuple[Array, Array]:
    """Sum of the signs of all terms of dx, the addend among them, and number of terms that are not 0."""
    dy, weight = np.sign(arrays["dy"]), np.sign(arrays["filter"])
    total, count = _by_tap(dy, weight, found), _by_tap(np.abs(dy), np.abs(weight), found)
    if "add_to_output" in arrays:
        added = np.sign(arrays["add_to_output"])
        total, count = total + added, count + np.abs(added)
    return total, count


CONV_DATA_GRAD = register(
    Op(
        name="conv_data_grad",
        params=ConvDataGradParams,
        dtypes=FLOATS,
        inputs=(
            Input("dy", required=False, doc="(N, Co, ...) or (N, ..., Co)"),
            Input("filter", doc="(Co, C / groups, k...) or (Co, k..., C / groups)"),
            Input("x_like", doc="gives the shape of dx; its values are not read"),
            Input("add_to_output", required=False, doc="the shape of x_like, optional"),
        ),
        outputs=("dx",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        propose=propose,
        summary="gradient of a convolution with respect to its input, with an optional addend",
        source="OneFlow conv_data_grad; FuseAddToOutput, OneFlow #3524",
        errata=("N/B against 3N/B is a limit of cuDNN's beta: a separate addend pointer always costs one read",),
    )
)
"""The registered op."""
