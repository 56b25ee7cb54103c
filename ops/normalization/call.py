"""Common parts of normalization's CUDA kernels: x as (images, C, post), and the arrays and numbers of a call."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.tuning import Parameter
from opgauge.ops._core.tuning import declare as declare_parameter
from opgauge.ops._cuda.struct import pointer
from opgauge.ops._cuda.vectors import widest_vector

THREADS = 256
STATIC_BYTES = 11 * 1024
"""Shared memory of a block besides its part of x, rounded up."""
VECTOR_BYTES = 16
LARGEST_SIZE = 1 << 31
"""Maximum elements, so that offsets are 32-bit numbers."""
LETTER = 4
"""Statistics that take the space of a block's two flagged ones of a channel, as half of those are flags."""
MOST_PARTIALS = 1 << 15
"""Maximum partial statistics that blocks of a shared channel publish; the workspace has room for them."""
WIDTHS = {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}
"""Candidate vector widths in elements, up to 16 bytes."""
WIDEST, MOST_IMAGES = max(WIDTHS.values()), 8
"""Elements of the widest vector; images that a single channel is divided into, if they are whole vectors."""
STATISTICS: dict[str, Any] = {
    f"Statistics<{ctype}>": np.dtype(
        [(name, pointer(f"const {ctype}")) for name in ("moving_mean", "moving_variance")]
        + [(name, pointer(ctype)) for name in ("mean", "inv_variance", "new_moving_mean", "new_moving_variance")]
    )
    for ctype in ("float", "double")
}
"""`Statistics` of statistics.cuh by C++ name."""


def declare(name: str, default: int, candidates: tuple[int, ...], why: str) -> Parameter:
    """A launch parameter of these kernels."""
    ops = ("normalization", "residual_block", "resnet50_adds")
    return declare_parameter(f"normalization.{name}", default, candidates, backend="cuda", ops=ops, why=why)


def allow(function: Any, shared: int) -> None:
    """Raise a function's shared-memory limit; never lower it, as one function serves many shapes."""
    function.max_dynamic_shared_size_bytes = max(shared, function.max_dynamic_shared_size_bytes)


@dataclass(frozen=True, slots=True)
class View:
    """View of x as (images, C, post)."""

    images: int
    channels: int
    post: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axis: int) -> View:
        """The view of `shape` with channel axis `axis`."""
        axis %= len(shape)
        if shape[axis] == 1:  # any division of a single channel is right; blocks of a cluster divide images
            size = prod(shape)
            images = gcd(size // WIDEST, MOST_IMAGES) if size % WIDEST == 0 else 1
            return cls(images, 1, size // images)
        return cls(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))

    @property
    def run(self) -> int:
        """Contiguous elements that belong together: a row, or for channels_last the channels."""
        return self.channels if self.post == 1 else self.post

    @property
    def counters_bytes(self) -> int:
        """Bytes of the arrival counters at the start of the workspace, one per channel."""
        return -(-4 * self.channels // 256) * 256


@dataclass(frozen=True, slots=True)
class Call:
    """Arrays and numbers of the kernels; addend may be None. statistics: a `Statistics` of statistics.cuh."""

    view: View
    x: Any
    addend: Any
    y: Any
    gamma: Any
    beta: Any
    statistics: Any
    workspace: Any
    epsilon: Any
    momentum: Any

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """Arrays of x's shape."""
        return self.x, self.addend, self.y

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Leading kernel arguments."""
        return *self.tensors, self.gamma, self.beta

    @property
    def numbers(self) -> tuple[Any, Any]:
        """Trailing kernel arguments."""
        return self.epsilon, self.momentum

    @property
    def adds(self) -> bool:
        """Whether there is an addend."""
        return self.addend is not None

    @property
    def counters(self) -> Any:
        """Arrival counters, one per channel; zero before and after a launch."""
        return self.workspace

    @property
    def flagged(self) -> Any:
        """Flagged partial statistics."""
        return self.workspace[self.view.counters_bytes :]

    @property
    def ctype(self) -> str:
        """C++ type of the tensors."""
        return dtype_info(self.x.dtype.name).ctype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.x.dtype.itemsize)

    @property
    def widest(self) -> int:
        """Elements of a vector of 16 bytes."""
        return WIDTHS[self.x.dtype.name]

    @property
    def vector(self) -> int:
        """Elements of the widest vector that divides all runs of the tensors."""
        return widest_vector(self.itemsize, self.view.run, *self.tensors)

    @property
    def width(self) -> int:
        """Elements of a 16-byte vector, or 1 if that does not fit."""
        return self.widest_or_one(self.vector)

    def widest_or_one(self, vector: int) -> int:
        """16-byte vectors or single elements, the widths that kernels are compiled for."""
        return vector if vector == self.widest else 1
