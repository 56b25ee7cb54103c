"""conv_data_grad written a second time: every product sent to where it belongs, with the mistakes that kernels make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.case.case import Case
from opgauge.ops.conv_data_grad.op import ConvGeometry, geometry

Array = NDArray[Any]
MISTAKES = (
    "kernel flipped",
    "kernel axes swapped",
    "filter's channels swapped",
    "groups ignored",
    "groups interleaved",
    "strides ignored",
    "strides swapped",
    "padding ignored",
    "padding swapped",
    "dilation ignored",
    "dilation swapped",
    "last tap dropped",
    "last output dropped",
    "last image dropped",
    "filter read in the other layout",
    "addend dropped",
    "addend doubled",
    "addend only where a product falls",
)
"""What `scatter` can do wrong."""


def scatter(case: Case, arrays: Mapping[str, Array], wrong: str = "") -> Array:
    """dx in float64, right where `wrong` is empty."""
    found = geometry(case.shapes["x_like"], case.shapes["filter"], case.params)
    dy, weight = arrays["dy"], arrays["filter"]
    if wrong == "filter read in the other layout":
        weight = _reinterpreted(weight, found)
    elif found.channels_last:
        weight = np.moveaxis(weight, -1, 1)
    dy = np.moveaxis(dy, -1, 1) if found.channels_last else dy
    dx = np.zeros((found.batch, found.channels, *found.size))
    touched = np.zeros(found.size, bool)
    strides, padding, dilation = _numbers(found, wrong)
    for place in np.ndindex(*found.out_size):
        for tap in np.ndindex(*found.kernel):
            if wrong == "last tap dropped" and tap == tuple(k - 1 for k in found.kernel):
                continue
            pairs = zip(place, strides, padding, tap, dilation, found.size, strict=True)
            target = tuple(o * s - p + i * d for o, s, p, i, d, _ in pairs)
            if all(0 <= t < length for t, length in zip(target, found.size, strict=True)):
                entry = _entry(tap, found.kernel, wrong)
                given, part = dy[_at(place)], weight[_at(entry)]
                dx[_at(target)] += _products(given, part, found, wrong)
                touched[target] = True
    if wrong == "last image dropped":
        dx[-1] = 0
    total: Array = (np.moveaxis(dx, 1, -1) if found.channels_last else dx) + _addend(arrays, touched, found, wrong)
    return total


def _at(place: tuple[int, ...]) -> Any:
    """The index of one pixel or tap, all channels and images."""
    return (..., *place)


def _reinterpreted(weight: Array, found: ConvGeometry) -> Array:
    per_group = found.channels // found.groups
    shape = (found.out_channels, per_group, *found.kernel)
    if found.channels_last:
        return weight.reshape(shape)
    return np.moveaxis(weight.reshape(found.out_channels, *found.kernel, per_group), -1, 1)


def _numbers(found: ConvGeometry, wrong: str) -> list[tuple[int, ...]]:
    """Strides, padding and dilation."""
    given = {"strides": found.strides, "padding": found.padding, "dilation": found.dilation}
    neutral = {"strides": 1, "padding": 0, "dilation": 1}
    numbers = []
    for name, values in given.items():
        if wrong == f"{name} ignored":
            numbers.append((neutral[name],) * len(values))
        else:
            numbers.append(values[::-1] if wrong == f"{name} swapped" else values)
    return numbers


def _entry(tap: tuple[int, ...], kernel: tuple[int, ...], wrong: str) -> tuple[int, ...]:
    """Which entry of the kernel a tap takes."""
    if wrong == "kernel flipped":
        return tuple(k - 1 - i for k, i in zip(kernel, tap, strict=True))
    if wrong == "kernel axes swapped":
        flat = int(np.ravel_multi_index(tap[::-1], kernel[::-1]))
        return tuple(int(index) for index in np.unravel_index(flat, kernel))
    return tap


def _products(dy: Array, weight: Array, found: ConvGeometry, wrong: str) -> Array:
    """One output pixel's (N, Co) times one tap's (Co, C / groups), by group: (N, C)."""
    if wrong == "last output dropped":
        dy = np.concatenate([dy[:, :-1], np.zeros_like(dy[:, :1])], axis=1)
    groups, per_group = found.groups, weight.shape[1]
    total = np.zeros((len(dy), found.channels))
    outs = found.out_channels // groups
    for group in range(groups):
        source = 0 if wrong == "groups ignored" else group
        part = weight[source * outs : (source + 1) * outs]
        if wrong == "filter's channels swapped":
            part = np.ascontiguousarray(part).reshape(per_group, outs).T
        mine = slice(group, None, groups) if wrong == "groups interleaved" else slice(group * outs, (group + 1) * outs)
        total[:, group * per_group : (group + 1) * per_group] = dy[:, mine] @ part
    return total


def _addend(arrays: Mapping[str, Array], touched: Array, found: ConvGeometry, wrong: str) -> Any:
    if "add_to_output" not in arrays or wrong == "addend dropped":
        return 0.0
    addend = arrays["add_to_output"]
    if wrong == "addend only where a product falls":
        return addend * (touched[..., None] if found.channels_last else touched)
    return addend * (2 if wrong == "addend doubled" else 1)
