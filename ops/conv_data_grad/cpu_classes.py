"""conv_data_grad on the CPU with strides: a convolution without strides for each residue class of pixels.

Pixels whose index has the same remainder by the stride are reached by the same taps: a product of tiles computes them
without the columns that BLAS needs, and one of BLAS those of a single tap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import scratch
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_rows import flat
from opgauge.ops.conv_data_grad.op import ConvGeometry, three
from opgauge.ops.conv_data_grad.residue_classes import Axis, axes_of

FEW_COPIED = 1 << 10
"""Numbers of a filter below which NumPy copies a part of it in less time than it takes to call a kernel."""


class PixelClass(NamedTuple):
    """Pixels of dx with common taps, as a convolution without strides; their remainders, and their taps by axis."""

    geometry: ConvGeometry
    residues: tuple[int, ...]
    taps: tuple[slice, ...]


def classes_of(found: ConvGeometry) -> list[PixelClass]:
    """The classes that some tap reaches."""
    axes = axes_of(found)[-len(found.size) :]
    return [_class_of(found, axes, residues) for residues in product(*map(_reached, axes))]


def _reached(axis: Axis) -> list[int]:
    return [residue for residue in axis.residues if axis.reaches(residue)]


def _class_of(found: ConvGeometry, axes: Sequence[Axis], residues: tuple[int, ...]) -> PixelClass:
    reaches = [axis.reaches(residue) for axis, residue in zip(axes, residues, strict=True)]
    geometry = replace(
        found,
        size=tuple(axis.size(residue) for axis, residue in zip(axes, residues, strict=True)),
        kernel=tuple(map(len, reaches)),
        strides=(1,) * len(axes),
        padding=tuple(one[0] for one in reaches),
        dilation=tuple(axis.step for axis in axes),
    )
    return PixelClass(geometry, residues, tuple(map(_taps, axes, residues)))


def _taps(axis: Axis, residue: int) -> slice:
    """Taps that reach a class: every so many, from the first on."""
    first, _ = axis.taps(residue)[0]
    return slice(first, None, axis.stride // gcd(axis.stride, axis.dilation))


def in_classes(
    found: ConvGeometry,
    classes: Sequence[PixelClass],
    tensors: Tensors,
    convolve: Callable[[ConvGeometry, Tensors], Bound],
) -> Bound:
    """A call that convolves each class by `convolve` and weaves the results into dx."""
    from opgauge.ops.conv_data_grad import jit_fold as jit

    dx, addend, threads = tensors.dx, tensors.addend, count(2 * tensors.dx.nbytes)
    added, target = flat(addend, dx), flat(dx, dx)
    steps, parts = list[Bound](), list[Any]()
    if len(classes) < prod(len(axis.residues) for axis in axes_of(found)):  # no tap reaches the other pixels
        steps.append(partial(jit.begin.on(threads), added, target, threads))
    for one in classes:
        inner = found.channels if found.channels_last else 1
        step, part = _step(found, one, tensors, convolve)
        steps.append(step)
        sizes = (*three(found.size, 1), *three(one.geometry.size, 1), *three(one.residues, 0), *three(found.strides, 1))
        rows = part.size // (one.geometry.size[-1] * inner)
        if not are_two(found):
            steps.append(partial(jit.weave.on(threads), part, added, target, rows, inner, sizes))
        elif one.residues[-1] == 0:
            parts = [part]
        else:
            steps.append(partial(jit.weave_two.on(threads), *parts, part, added, target, rows, sizes))

    def run() -> None:
        for step in steps:
            step()

    return run


def are_two(found: ConvGeometry) -> bool:
    """Whether columns are in two classes next to each other, which are woven together, channels first."""
    return not found.channels_last and found.strides[-1] == len(_reached(axes_of(found)[-1])) == 2


def _step(
    found: ConvGeometry,
    one: PixelClass,
    tensors: Tensors,
    convolve: Callable[[ConvGeometry, Tensors], Bound],
) -> tuple[Bound, Any]:
    """A call that convolves one class, and its flat result."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.conv_data_grad import jit_fold as jit

    weight, wide, last = tensors.weight, tensors.wide, found.channels_last
    outs = weight.shape[0]
    laid = weight.reshape(outs, *found.kernel, -1) if last else weight.reshape(outs, -1, *found.kernel)
    chosen = laid[(slice(None), *one.taps)] if last else laid[(slice(None), slice(None), *one.taps)]
    shape = (*one.geometry.size, found.channels) if last else (found.channels, *one.geometry.size)
    part, taps = scratch(found.batch * prod(shape), wide), np.empty(chosen.shape, weight.dtype)
    convolved = convolve(one.geometry, Tensors(tensors.dy, taps, part.reshape(found.batch, *shape), None, wide))
    if last or chosen.size < FEW_COPIED or chosen.size == weight.size:
        copy: Bound = partial(np.copyto, taps, chosen)
    else:
        places = np.arange(prod(found.kernel)).reshape(found.kernel)[one.taps].reshape(-1)
        given, target = storage(weight).reshape(-1), storage(taps).reshape(-1)
        copy = partial(jit.choose.on(count(2 * target.nbytes)), given, places, prod(found.kernel), target)

    def run() -> None:
        copy()
        convolved()

    return run, part
