"""What every kernel of normalization on CUDA is about: x as (images, C, post), and the arrays and numbers of a call."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.tuning import Parameter
from opgauge.ops._core.tuning import declare as declare_parameter
from opgauge.ops._cuda.source import widest_pack

THREADS = 256
WARP = 32
STATIC_BYTES = 11 * 1024
"""Shared memory of a block beside what it keeps of x, rounded up."""
PACK_BYTES = 16
LARGEST_SIZE = 1 << 31
"""Elements, within which places are 32-bit numbers."""
LETTER = 4
"""Statistics in the room that a block's two of a channel take in the mail, each half of them flags."""
MOST_PARTIALS = 1 << 15
"""Statistics that blocks send each other, where a channel is shared: so much room there is in the workspace."""
WIDTHS = {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}
"""Elements of a pack of 16 bytes."""


def declare(name: str, default: int, candidates: tuple[int, ...], why: str) -> Parameter:
    """A launch parameter of these kernels."""
    ops = ("normalization", "residual_block", "resnet50_adds")
    return declare_parameter(f"normalization.{name}", default, candidates, backend="cuda", ops=ops, why=why)


def allow(function: Any, shared: int) -> None:
    """One function serves many shapes: what another launch needs must not be taken back."""
    function.max_dynamic_shared_size_bytes = max(shared, function.max_dynamic_shared_size_bytes)


@dataclass(frozen=True, slots=True)
class View:
    """x as (images, C, post)."""

    images: int
    channels: int
    post: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axis: int) -> View:
        """The view of `shape` with channel axis `axis`."""
        axis %= len(shape)
        return cls(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))

    @property
    def run(self) -> int:
        """Elements that lie side by side and belong together: a row's, or where channels come last the channels."""
        return self.channels if self.post == 1 else self.post

    @property
    def tickets_bytes(self) -> int:
        """What the workspace begins with: a ticket a channel."""
        return -(-4 * self.channels // 256) * 256


@dataclass(frozen=True, slots=True)
class Call:
    """Arrays and numbers as kernels take them; addend may be None. statistics: pointers to the channels' six arrays."""

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
        """Those of x's shape."""
        return self.x, self.addend, self.y

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What kernels take first."""
        return *self.tensors, self.gamma, self.beta

    @property
    def numbers(self) -> tuple[Any, Any]:
        """What kernels take last."""
        return self.epsilon, self.momentum

    @property
    def adds(self) -> bool:
        """Whether there is an addend."""
        return self.addend is not None

    @property
    def tickets(self) -> Any:
        """Zero before and after a launch, one for each channel."""
        return self.workspace

    @property
    def mail(self) -> Any:
        """Where blocks tell each other what they found."""
        return self.workspace[self.view.tickets_bytes :]

    @property
    def ctype(self) -> str:
        """The tensors' type in C++."""
        return dtype_info(self.x.dtype.name).ctype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.x.dtype.itemsize)

    @property
    def widest(self) -> int:
        """Elements of a pack of 16 bytes."""
        return WIDTHS[self.x.dtype.name]

    @property
    def pack(self) -> int:
        """Elements of the widest pack that all runs of the tensors are whole numbers of."""
        return widest_pack(self.itemsize, self.view.run, *self.tensors)

    @property
    def width(self) -> int:
        """Elements of a pack of 16 bytes, or 1 where that does not fit."""
        return self.widest_or_one(self.pack)

    def widest_or_one(self, pack: int) -> int:
        """Packs of 16 bytes or single elements: kernels are compiled for those."""
        return pack if pack == self.widest else 1
