"""Buffers of kernels: inputs in the layout of a case, and outputs between guards."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case, InputSpec
from opgauge.harness.worker.bits import digest, has_bits
from opgauge.harness.worker.draws import Draws
from opgauge.harness.worker.inputs import ALIGNMENT, PAGE, empty_bytes, place
from opgauge.harness.worker.regions import Operation, filling, is_flat, perform, run
from opgauge.ops import dtype_info
from opgauge.ops._core.backend import to_numpy
from opgauge.ops._core.op import Array

GUARD = 4096 + ALIGNMENT
"""Bytes before and after each output that a kernel must not change.

Not a multiple of a page, so that outputs and inputs start at different offsets within their pages.
"""
GUARD_BYTE = 0xC3
"""Value of the guards."""
PARTS, PART_BYTES = 8, 4096
"""Parts of a large output that are poisoned before a sample, and their size."""
PROT_READ, PROT_WRITE = 1, 2
"""Flags of mprotect."""
COPIES, COPIED_BYTES = 31, 64 << 10
"""Copies of small buffers on a GPU, and maximum bytes of these."""
DECOYS, DECOY_BYTES = 8, 64 << 10
"""Parts of a large input that have other values while a kernel is bound, and their size."""
POISONS = ((0xFF, 0xA5), (0x7F, 0x5A), (0xFF, 0x3C))
"""Garbage for outputs before the first, the second and the timed calls.

A byte for floats (NaN, or implausibly large numbers) and one for integers and bool.
"""


class Buffers:
    """Inputs and outputs of a case on a backend, shared by implementations one after the other or interleaved.

    inputs: by name, in the layout of the case, or all in `layout`. untouched: their values, in memory that no
    kernel can access. out: outputs by name; they start at multiples of 256 bytes, or one element past that if
    `layout` is "offset". draws: fresh values that implementations share.
    """

    def __init__(self, case: Case, values: Mapping[str, Array], backend: str, *, layout: str | None = None) -> None:
        layouts = {name: layout or case.inputs.get(name, InputSpec()).layout for name in values}
        self.inputs: dict[str, Any] = {name: place(value, layouts[name], backend) for name, value in values.items()}
        self.untouched: dict[str, Array] = {
            name: values[name] if backend == "cpu" else copy_beside(array, values[name])
            for name, array in self.inputs.items()
        }
        self._case, self._layout = case, layout
        self._backend = backend
        self.out: dict[str, Any] = {}
        self._guarded: dict[str, Any] = {}
        self._specs = case.resolved.outputs
        for name, spec in self._specs.items():
            if spec.view_of is not None:
                continue
            dtype = dtype_info(spec.dtype).numpy
            nbytes = spec.size * dtype.itemsize
            shift = dtype.itemsize if layout == "offset" else 0
            guarded = empty_bytes(shift + nbytes + 2 * GUARD, backend)[shift:]
            self._guarded[name] = guarded
            self.out[name] = guarded[GUARD : GUARD + nbytes].view(dtype).reshape(spec.shape)
        self.poisoned: dict[str, tuple[slice, ...]] = {}
        self.draws = Draws()
        self._put_guards()

    @cached_property
    def digest(self) -> str:
        """Digest of the bits that the inputs should have."""
        return digest(self.untouched)

    @cached_property
    def copies(self) -> tuple[Buffers, ...]:
        """Buffers with the same inputs at other addresses, at least a guard apart; none if large or on the CPU."""
        nbytes = sum(int(array.nbytes) for arrays in (self.inputs, self.out) for array in arrays.values())
        if self._backend == "cpu" or nbytes > COPIED_BYTES:
            return ()
        values = {name: to_numpy(array) for name, array in self.untouched.items()}
        return tuple(Buffers(self._case, values, self._backend, layout=self._layout) for _ in range(COPIES))

    def poison(self, turn: int) -> None:
        """Fill the outputs with garbage, different for each turn."""
        for name, guarded in self._guarded.items():
            kind = dtype_info(self._specs[name].dtype).kind
            guarded[GUARD:-GUARD] = POISONS[turn][0 if kind in ("float", "complex") else 1]

    def poison_parts(self, rng: np.random.Generator) -> None:
        """Fill some parts of each output with garbage, always the last elements; `poisoned` lists the elements."""
        operations: list[Operation] = []
        for name, out in self.out.items():
            length = max(1, PART_BYTES // out.itemsize)
            starts = [*rng.integers(0, max(out.size, 1), PARTS).tolist(), max(out.size - length, 0)]
            self.poisoned[name] = tuple(slice(start, start + length) for start in starts)
            kind = dtype_info(self._specs[name].dtype).kind
            poison = POISONS[int(rng.integers(len(POISONS)))][0 if kind in ("float", "complex") else 1]
            flat, size = self._guarded[name][GUARD:-GUARD], out.itemsize
            ends = [(start * size, min((start + length) * size, flat.size)) for start in starts]
            if is_flat(flat):
                operations += filling(flat, (run(*end) for end in ends), poison)
                continue
            for start, stop in ends:
                flat[start:stop] = poison
        perform(operations)

    @contextmanager
    def decoy(self) -> Iterator[None]:
        """Context in which inputs have other values: small ones everywhere, large ones in parts and at both ends."""
        kept = []
        for array in self.inputs.values():
            flat = _flat(array)
            length = max(1, min(flat.size, DECOY_BYTES // array.itemsize))
            for start in dict.fromkeys(
                range(0, max(flat.size - length, 0) + 1, max(1, (flat.size - length) // DECOYS))
            ):
                part = flat[start : start + length]
                kept.append((part, part.copy()))
                part[...] = _other(kept[-1][1])
        try:
            yield
        finally:
            for part, values in reversed(kept):
                part[...] = values

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Context in which inputs on the host cannot be written: the system ends a process that tries (SIGSEGV)."""
        regions = [] if self._backend != "cpu" else [_pages(array) for array in self.inputs.values() if array.size]
        protect: Callable[..., int] = getattr(ctypes.CDLL(None), "mprotect", lambda *_: -1)
        for region in regions:
            protect(*region, PROT_READ)
        try:
            yield
        finally:
            for region in regions:
                protect(*region, PROT_READ | PROT_WRITE)

    def out_of_bounds_write(self) -> str:
        """Write to an input or outside the outputs, in words; empty without one."""
        for name, value in self.untouched.items():
            if not has_bits(self.inputs[name], value):
                return f"changed its input {name}"
        for name, guarded in self._guarded.items():
            before, after = to_numpy(guarded[:GUARD]), to_numpy(guarded[-GUARD:])
            if not (np.all(before == GUARD_BYTE) and np.all(after == GUARD_BYTE)):
                where = "after the end" if np.all(before == GUARD_BYTE) else "before the start"
                return f"wrote outside {name}, {where}"
        return ""

    def repair(self) -> None:
        """Restore inputs and guards, for other implementations on the same buffers."""
        for name, value in self.untouched.items():
            self.inputs[name][...] = value
        self._put_guards()

    def _put_guards(self) -> None:
        for guarded in self._guarded.values():
            guarded[:GUARD] = GUARD_BYTE
            guarded[-GUARD:] = GUARD_BYTE


def _pages(array: Array) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """Start and size of an array's pages, which contain nothing else (see `inputs.empty_bytes`)."""
    low, high = np.lib.array_utils.byte_bounds(array)
    start = low // PAGE * PAGE
    return ctypes.c_void_p(start), ctypes.c_size_t(-(-high // PAGE) * PAGE - start)


def _flat(array: Any) -> Any:
    """A flat view of an input, whose memory is contiguous in some order of its axes."""
    return (array if array.flags.c_contiguous else array.T).reshape(-1)


def _other(values: Any) -> Any:
    """Different values of the same kind and magnitude: reversed, and floats halved."""
    reversed_ = values[::-1]
    if values.dtype.kind == "b":
        return ~reversed_
    return reversed_ if values.dtype.kind in "iu" else reversed_ * values.dtype.type(0.5)


def copy_beside(array: Any, otherwise: Array | None = None) -> Array:
    """A copy on the array's device, where comparisons need no transfer; on the host if memory is short."""
    try:
        copy: Array = array.copy()
    except MemoryError:
        if isinstance(array, np.ndarray):
            raise
        return to_numpy(array) if otherwise is None else otherwise
    return copy
