"""Convolutions to try: a few fixed ones, whatever hypothesis draws, and offsets that reach outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs
from opgauge.ops import FLOATS
from tests.draws import drawn_of
from tests.ops.attempts import case_of, inputs_of

Shape = tuple[int, ...]


def convolution(op: str, dtype: str, x: Shape, filter_shape: Shape, *, mask: bool, **params: Any) -> Case:
    """A case, with the mask's shape worked out where there is one."""
    shapes = {"x": x, "filter": filter_shape}
    if not mask:
        return case_of(op, shapes, dtype, **params)
    forward = {name: value for name, value in params.items() if not name.startswith("need_")}
    bare = case_of("deformable_conv", shapes, dtype, **forward)
    batch, twice, height, width = bare.resolved.inputs["offset"].shape
    return case_of(op, {**shapes, "mask": (batch, twice // 2, height, width)}, dtype, **params)


def grouped(op: str, dtype: str, groups: int, parts: int, each: int, *, mask: bool) -> Case:
    """A small convolution of `each` channels in the smaller of groups and deformable groups."""
    channels = max(groups, parts) * each
    return convolution(
        op,
        dtype,
        (2, channels, 6, 7),
        (groups * 9, channels // groups, 3, 2),
        mask=mask,
        strides=(2, 1),
        dilations=(1, 2),
        paddings=(1, 2),
        groups=groups,
        deformable_groups=parts,
    )


def _fixed(x: Shape, filter_shape: Shape, *, mask: bool = True, **params: Any) -> Callable[..., Case]:
    def make(dtype: str, op: str = "deformable_conv") -> Case:
        return convolution(op, dtype, x, filter_shape, mask=mask, **params)

    return make


CASES: tuple[Callable[..., Case], ...] = (
    _fixed((2, 4, 5, 6), (3, 4, 2, 3)),
    _fixed((1, 3, 6, 4), (2, 3, 3, 1), mask=False),
    _fixed((2, 3, 7, 8), (2, 3, 3, 2), strides=(2, 1), paddings=(1, 2), dilations=(2, 3)),
    _fixed((2, 8, 4, 3), (4, 4, 2, 3), paddings=1, groups=2, deformable_groups=4),
    _fixed((4, 4, 3, 4), (6, 2, 2, 2), paddings=(0, 1), groups=2, im2col_step=2),
)
"""Makers of cases, by dtype and op."""


@dataclass(frozen=True)
class Drawn:
    """A convolution that hypothesis made."""

    x: Shape
    filter_shape: Shape
    dtype: str
    mask: bool
    seed: int
    params: dict[str, Any] = field(default_factory=dict)

    def case(self, op: str, **more: Any) -> Case:
        """The case of `op`."""
        return convolution(op, self.dtype, self.x, self.filter_shape, mask=self.mask, **self.params, **more)


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    """Up to three images of up to nine pixels a side, in every combination of the parameters."""
    pick = partial(st.integers, 1)
    groups, parts = draw(pick(3)), draw(pick(3))
    channels = int(np.lcm(groups, parts)) * draw(pick(2))
    kernel = (draw(pick(3)), draw(pick(3)))
    pairs = {
        "strides": (draw(pick(3)), draw(pick(3))),
        "paddings": (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        "dilations": (draw(pick(2)), draw(pick(3))),
    }
    least = [
        max(d * (k - 1) + 1 - 2 * p, 1) for d, k, p in zip(pairs["dilations"], kernel, pairs["paddings"], strict=True)
    ]
    size = [low + draw(st.integers(0, 5)) for low in least]
    batch = draw(pick(3))
    step = draw(st.sampled_from([step for step in (1, 2, 3, 64) if step >= batch or batch % step == 0]))
    return Drawn(
        (batch, channels, *size),
        (groups * draw(pick(2)), channels // groups, *kernel),
        draw(st.sampled_from(drawn_of("deformable_conv", FLOATS))),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
        {**pairs, "groups": groups, "deformable_groups": parts, "im2col_step": step},
    )


def scattered(case: Case, seed: int) -> Inputs:
    """Inputs with offsets of some pixels: most samples between pixels, some outside."""
    rng = np.random.default_rng(seed)
    return inputs_of(
        case, **{**_values(case), "offset": 1.5 * rng.standard_normal(case.resolved.inputs["offset"].shape)}
    )


def _values(case: Case) -> dict[str, Any]:
    return {name: value for name, value in inputs_of(case).values.items() if name != "offset"}
