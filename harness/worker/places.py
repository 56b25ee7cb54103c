"""A small call at several addresses, since the hot times of the smallest kernels depend on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from opgauge.harness.worker.bits import has_bits
from opgauge.harness.worker.buffers import Buffers
from opgauge.ops import Bound
from opgauge.ops._core.backend import to_torch
from opgauge.ops._core.op import Array

MOST_BIND_S, FEWEST = 0.3, 7
"""Seconds of binding a kernel to copies after which no other copy is bound, and fewest copies that count: a kernel that
compiles then is not bound to others."""


class MovableTensors:
    """Torch tensors that share the memory of buffers, and can be moved to others without binding a kernel again.

    inputs, out: by name.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.inputs, self.out = _shared(buffers)

    def mover(self, buffers: Buffers) -> Callable[[], None]:
        """A function that lets the tensors share the memory of `buffers`, whose arrays are converted here, once."""
        pairs = [
            (tensor, there[name])
            for own, there in zip((self.inputs, self.out), _shared(buffers), strict=True)
            for name, tensor in own.items()
        ]

        def move() -> None:
            for tensor, other in pairs:
                tensor.data = other

        return move

    def at(self, call: Bound, buffers: Buffers) -> Bound:
        """A call that moves the tensors to `buffers` first."""
        move = self.mover(buffers)

        def moved() -> Any:
            move()
            return call()

        return moved


def _shared(buffers: Buffers) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and outputs of buffers as tensors."""
    inputs, out = (
        {name: to_torch(array) for name, array in arrays.items()} for arrays in (buffers.inputs, buffers.out)
    )
    return inputs, out


class PlacedCalls:
    """A call on a case's buffers and on their copies; `calls` is empty if there are few, as where binding takes long.

    move_back: lets tensors share the memory of the first buffers again.
    """

    def __init__(
        self, call: Bound, buffers: Buffers, bind: Callable[[Buffers], Bound], tensors: MovableTensors | None
    ) -> None:
        """bind: binds the kernel to other buffers. tensors: those that `call` is bound to, which are moved instead."""
        self.call = call
        self.calls: tuple[Bound, ...] = ()
        self.move_back: Callable[[], object] = int
        at = bind if tensors is None else partial(tensors.at, call)
        found = [call if tensors is None else at(buffers)]
        end = perf_counter() + MOST_BIND_S
        for copy in buffers.copies:
            if perf_counter() > end:
                break
            found.append(at(copy))
        bound = len(found) - 1
        self._copies = buffers.copies[:bound] if bound >= FEWEST else ()
        if self._copies:
            self.calls = tuple(found)
            self.move_back = int if tensors is None else tensors.mover(buffers)

    def poison(self) -> None:
        """Fill the outputs of the copies with garbage."""
        for copy in self._copies:
            copy.poison(0)

    def wrong_output(self, expected: Mapping[str, Array]) -> str:
        """The name of an output that has other bits in some copy; empty without one."""
        return next(
            (name for copy in self._copies for name, out in copy.out.items() if not has_bits(out, expected[name])), ""
        )
