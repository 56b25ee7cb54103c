"""A small call at several addresses, since the hot times of the smallest kernels depend on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from opgauge.harness.worker.bits import has_bits
from opgauge.harness.worker.buffers import Buffers
from opgauge.ops import Bound
from opgauge.ops._core.backend import to_torch
from opgauge.ops._core.op import Array


class MovableTensors:
    """Torch tensors that share the memory of buffers, and can be moved to others without binding a kernel again.

    inputs, out: by name.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.inputs, self.out = _shared(buffers)

    def move_to(self, buffers: Buffers) -> None:
        """Let the tensors share the memory of `buffers`."""
        for own, there in zip((self.inputs, self.out), _shared(buffers), strict=True):
            for name, tensor in own.items():
                tensor.data = there[name]

    def at(self, call: Bound, buffers: Buffers) -> Bound:
        """A call that moves the tensors to `buffers` first."""

        def moved() -> Any:
            self.move_to(buffers)
            return call()

        return moved


def _shared(buffers: Buffers) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and outputs of buffers as tensors."""
    inputs, out = (
        {name: to_torch(array) for name, array in arrays.items()} for arrays in (buffers.inputs, buffers.out)
    )
    return inputs, out


class PlacedCalls:
    """A call on a case's buffers and on their copies; `calls` is empty if these are large, or on the CPU."""

    def __init__(
        self, call: Bound, buffers: Buffers, bind: Callable[[Buffers], Bound], tensors: MovableTensors | None
    ) -> None:
        """bind: binds the kernel to other buffers. tensors: those that `call` is bound to, which are moved instead."""
        self._copies = buffers.copies
        for copy in self._copies:
            copy.poison(0)
        at = bind if tensors is None else partial(tensors.at, call)
        self.calls: tuple[Bound, ...] = tuple(map(at, (buffers, *self._copies))) if self._copies else ()

    def wrong_output(self, expected: Mapping[str, Array]) -> str:
        """The name of an output that has other bits in some copy; empty without one."""
        return next(
            (name for copy in self._copies for name, out in copy.out.items() if not has_bits(out, expected[name])), ""
        )
