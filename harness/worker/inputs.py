"""Seeded inputs: the same values for every implementation, backend and machine.

A value depends on the case's id and the input's name only. Numbers are drawn in float64 and rounded once to the input's
dtype; inputs that the op derives are computed from the rounded values and rounded again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case, InputSpec
from opgauge.harness.worker.shared_memory import allocate_shared
from opgauge.ops import DtypeInfo, Input, TensorSpec, dtype_info, find_op
from opgauge.ops._core.backend import cupy, to_numpy
from opgauge.ops._core.op import Array

LAYOUTS = ("contiguous", "offset", "transposed")
"""Layouts of an input in memory."""
ALIGNMENT = 256
"""Alignment of arrays, in bytes."""
PAGE, LARGE_PAGE = 4096, 2 << 20
"""Bytes of a page, and of a large page."""
_PLACES = count()
LARGE_BYTES = 1 << 20
"""Size from which memory on the CPU is allocated in large pages."""
NEAREST_TO_ZERO = 1e-3
"""Least magnitude of the op's own normal inputs, in standard deviations: powers degenerate near zero."""
PART = 1 << 20
"""Numbers drawn from one seed."""
SPREAD = 100
"""Largest magnitude of integer inputs without a distribution of their own."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of one case on the host.

    values: by name, in their dtype, C-contiguous.
    """

    values: Mapping[str, Array]

    @cached_property
    def wide(self) -> Mapping[str, Array]:
        """The same numbers in the dtype of the reference: float64, complex128, or the integer dtype itself."""
        return {name: widen(value) for name, value in self.values.items()}


def make_inputs(case: Case) -> Inputs:
    """Draw the inputs of `case` and derive those that depend on others."""
    op = find_op(case.op)
    specs = case.resolved.inputs
    values = {}
    for name, spec in specs.items():
        wanted = dtype_info(spec.dtype), op.input(name), case.inputs.get(name, InputSpec())
        values[name] = draw_parts(_seed(case.id, name), spec.size, *wanted).reshape(spec.shape)
    return with_derived(case, values)


def draw_parts(seed: int, size: int, dtype: DtypeInfo, own: Input, spec: InputSpec) -> Array:
    """`size` numbers, in parts with a seed each, so that any number of CPUs draws the same numbers."""
    drawn = np.empty(size, dtype.numpy)

    def part(number: int) -> None:
        rng = np.random.Generator(np.random.PCG64(seed if number == 0 else [seed, number]))
        place = drawn[number * PART : (number + 1) * PART]
        place[...] = draw(rng, place.shape, dtype, own, spec)

    if size <= PART:
        part(0)
        return drawn
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(part, range(-(-size // PART))):
            pass
    return drawn


def with_derived(case: Case, values: Mapping[str, Array], sliced: Collection[str] | None = None) -> Inputs:
    """The inputs of `case` from `values`, with those that the op derives.

    sliced: inputs of which `values` has slices. Others belong to all slices, and are not derived from these; nor are
    slices derived from what belongs to all of them.
    """
    op, specs = find_op(case.op), case.resolved.inputs
    if op.derive is None:
        return Inputs(values)
    if sliced is not None:
        specs = {name: replace(specs[name], shape=values[name].shape) for name in sliced}
    with np.errstate(all="ignore"):
        derived = op.derive(Inputs(values).wide, case.params)
    fitting = [
        name for name in derived.keys() & specs.keys() if sliced is None or np.size(derived[name]) == specs[name].size
    ]
    return Inputs({**values, **{name: _rounded(derived[name], specs[name]) for name in fitting}})


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DtypeInfo, own: Input, spec: InputSpec) -> Array:
    """Numbers of one input: by `spec` of the case, else by `own` of the op."""
    if dtype.kind == "complex":
        part = partial(_draw_float, rng, shape, own, spec)
        return np.asarray(part() + 1j * part()).astype(dtype.numpy)
    kind = spec.kind or own.kind
    plain = spec.kind is None and own.kind == "normal"
    if dtype.kind == "bool" and kind != "constant":
        low, high = _range(own, spec)
        middle = 0.0 if kind == "normal" else (low + high) / 2
        return np.asarray(_draw_float(rng, shape, own, spec) > middle)
    if dtype.kind in ("int", "uint"):
        if plain:
            low = -SPREAD if dtype.kind == "int" else 0
            return rng.integers(low, SPREAD, shape, endpoint=True).astype(dtype.numpy)
        limits = np.iinfo(dtype.numpy)
        numbers = np.clip(np.rint(_draw_float(rng, shape, own, spec)), float(limits.min), float(limits.max))
        return np.asarray(numbers).astype(dtype.numpy)
    numbers = _draw_float(rng, shape, own, spec)
    if plain:
        least = NEAREST_TO_ZERO * own.std
        numbers = np.where(np.abs(numbers) < least, np.copysign(least + np.abs(numbers), numbers), numbers)
    with np.errstate(over="ignore"):
        return np.asarray(numbers).astype(dtype.numpy)


def on_host(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays by name as NumPy arrays: those of a CPU are the same memory, others are copied."""
    return {name: to_numpy(array) for name, array in arrays.items()}


def widen(value: Array) -> Array:
    """`value` in the dtype of the reference: float64, complex128, or integers and bool unchanged."""
    name = value.dtype.name
    kind = dtype_info(name).kind
    if kind == "float":
        return value.astype(np.float64, copy=False)
    return value.astype(np.complex128, copy=False) if kind == "complex" else value


def place(value: Array, layout: str, backend: str) -> Any:
    """A copy of `value` on `backend`, in the memory layout `layout`.

    contiguous: starts at a multiple of 256 bytes. offset: one element past that. transposed: axes reversed in
    memory.
    """
    if layout == "transposed":
        return _copy(value.T, 0, backend).T
    return _copy(value, value.itemsize if layout == "offset" else 0, backend)


def empty_bytes(nbytes: int, backend: str) -> Any:
    """`nbytes` uninitialised bytes on `backend`, starting at a multiple of 256 bytes."""
    if backend != "cpu":
        return cupy().empty(nbytes, np.uint8)
    shared = allocate_shared(nbytes)
    if shared is not None:
        return shared
    if nbytes >= LARGE_BYTES:
        return _in_large_pages(nbytes)
    return _in_own_pages(nbytes)


def _in_own_pages(nbytes: int) -> Any:
    """Memory in pages of its own, so that they can be made read-only; each at another offset in its page."""
    raw = np.frombuffer(mmap.mmap(-1, nbytes + PAGE), np.uint8)
    start = ALIGNMENT * (1 + next(_PLACES) % (PAGE // ALIGNMENT - 1))
    return raw[start : start + nbytes]


def _in_large_pages(nbytes: int) -> Any:
    """Memory in pages of 2 MiB if the system has them, independently of earlier allocations.

    `np.empty` may reuse memory in scattered pages of 4 KiB: by that alone one implementation was up to twice as
    fast as another in arrays that just fit the last cache.
    """
    mapped = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(mapped, np.uint8)
    start = -raw.ctypes.data % LARGE_PAGE
    return raw[start : start + nbytes]


def _copy(value: Array, start: int, backend: str) -> Any:
    raw = empty_bytes(start + value.nbytes, backend)[start:]
    source = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if backend == "cpu":
        raw[...] = source
    elif source.size:
        raw.set(source)
    return raw.view(value.dtype).reshape(value.shape)


def _rounded(value: Array, spec: TensorSpec) -> Array:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(np.asarray(value).astype(dtype_info(spec.dtype).numpy)).reshape(spec.shape)


def _range(own: Input, spec: InputSpec) -> tuple[float, float]:
    low = own.low if spec.low is None else spec.low
    high = own.high if spec.high is None else spec.high
    return low, high


def _draw_float(rng: np.random.Generator, shape: tuple[int, ...], own: Input, spec: InputSpec) -> Array:
    kind = spec.kind or own.kind
    low, high = _range(own, spec)
    if kind == "uniform":
        return rng.uniform(low, high, shape)
    if kind == "integers":
        return rng.integers(int(low), int(high), shape, endpoint=True).astype(np.float64)
    if kind == "constant":
        return np.full(shape, own.value if spec.value is None else spec.value)
    mean = own.mean if spec.mean is None else spec.mean
    std = own.std if spec.std is None else spec.std
    return mean + std * rng.standard_normal(shape)


def _seed(case_id: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{case_id}/{name}".encode()).digest()[:16], "little")
