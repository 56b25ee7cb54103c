"""Arrays of its own that a kernel returns: parts are overwritten after each sample, and have to be written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import addressof, c_uint8
from typing import Any

import numpy as np

from opgauge.harness.worker.attempt import WrongError
from opgauge.harness.worker.buffers import POISONS
from opgauge.ops import dtype_info
from opgauge.ops._core.op import Array

SPOILT = 64
"""Elements of a returned array that are overwritten."""
TOGGLED = 0xFF
"""Bits of a byte that change to see whether another one changes."""


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
        """Overwrite parts of arrays; raises WrongError if one cannot have been written since the last time.

        Nor may two outputs be one, by the same memory or by the same pages at two addresses.
        """
        shared = _shared({name: outputs[name] for name in self._out if name in outputs}) if len(self._out) > 1 else ""
        if shared:
            reason = f"returned the same memory for {shared}: writing each is part of the work"
            raise WrongError(reason)
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


def _shared(outputs: Mapping[str, Any]) -> str:
    """Names of two outputs of which one changes with the last element of the other; empty without any."""
    found = {name: _last_byte(array) for name, array in outputs.items() if isinstance(array, np.ndarray) and array.size}
    for first, one in found.items():
        others = [(name, other, other.value) for name, other in found.items() if name != first]
        shared = next((name for name, other, _ in others if addressof(other) == addressof(one)), "")
        with _writing(outputs[first]) as is_writable:
            if is_writable and not shared:
                before = one.value
                one.value ^= TOGGLED
                shared = next((name for name, other, value in others if other.value != value), "")
                one.value = before
        if shared:
            return f"{first} and {shared}"
    return ""


def _last_byte(array: Array) -> c_uint8:
    """The first byte of the last element."""
    steps = zip(array.shape, array.strides, strict=True)
    return c_uint8.from_address(array.ctypes.data + sum((size - 1) * stride for size, stride in steps))


@contextmanager
def _writing(array: Array) -> Iterator[bool]:
    """Context in which an array can be written, if so; False if its memory is that of a library and never changes."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    flags = [(one.flags, one.flags.writeable) for one in (owner, array)]
    try:
        for one, _ in flags:
            one.writeable = True
    except ValueError:
        yield False
        return
    yield True
    for one, was_writable in flags:
        one.writeable = was_writable


def _overwrite(array: Array, rng: np.random.Generator) -> bool:
    """Overwrite some elements with garbage, always the last one; False if the array's memory is constant."""
    kind = dtype_info(array.dtype.name).kind
    garbage = bytes([POISONS[0][0 if kind in ("float", "complex") else 1]]) * array.itemsize
    places = rng.integers(0, array.size, SPOILT)
    places[-1] = array.size - 1
    with _writing(array) as is_writable:
        if is_writable:
            array.flat[places] = np.frombuffer(garbage, array.dtype)[0]
    return is_writable
