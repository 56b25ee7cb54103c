"""Arrays of its own that a kernel returns: parts are overwritten after each sample, and have to be written again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opgauge.harness.worker.attempt import WrongError
from opgauge.harness.worker.buffers import POISONS
from opgauge.ops import dtype_info
from opgauge.ops._core.op import Array

SPOILT = 64
"""Elements of a returned array that are overwritten."""


class ReturnedArrays:
    """Arrays on the host that a kernel returned. out: the buffers, which are poisoned instead.

    An array whose memory nobody can write is stored until the kernel has returned the next one: it lies elsewhere then,
    unless it is the same one again.
    """

    def __init__(self, out: Mapping[str, Any], rng: np.random.Generator) -> None:
        self._out = out
        self._rng = rng
        self._constant: dict[str, Array] = {}

    def spoil(self, outputs: Mapping[str, Any]) -> None:
        """Overwrite parts of arrays; raises WrongError if one cannot have been written since the last time."""
        for name in outputs.keys() & self._out.keys():
            array, last = outputs[name], self._constant.pop(name, None)
            if not isinstance(array, np.ndarray) or not array.size or _may_share(array, self._out[name]):
                continue
            if last is not None and _may_share(array, last):
                reason = f"returned constant memory for {name} again: writing {name} is part of the work"
                raise WrongError(reason)
            if not _overwrite(array, self._rng):
                self._constant[name] = array


def _may_share(array: Array, other: Any) -> bool:
    """Whether an array of the host may share memory with another one: none of a GPU does."""
    return isinstance(other, np.ndarray) and np.may_share_memory(array, other)


def _overwrite(array: Array, rng: np.random.Generator) -> bool:
    """Overwrite some elements with garbage, always the last one; False if the array's memory is constant."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    flags = [(one.flags, one.flags.writeable) for one in (owner, array)]
    try:
        for one, _ in flags:
            one.writeable = True
    except ValueError:  # memory of a library whose arrays never change
        return False
    kind = dtype_info(array.dtype.name).kind
    garbage = bytes([POISONS[0][0 if kind in ("float", "complex") else 1]]) * array.itemsize
    places = rng.integers(0, array.size, SPOILT)
    places[-1] = array.size - 1
    array.flat[places] = np.frombuffer(garbage, array.dtype)[0]
    for one, writable in flags:
        one.writeable = writable
    return True
