"""Wrong kernels of every op: each does one thing that real kernels have done wrong.

A mutant is given the right outputs and leaves something else. `kernel_of` makes a kernel
of it, to be judged like any other. A mutant applies to a case only where it changes
something: `applies` runs it beside the right outputs and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.case.case import Case
from opgauge.harness.measure.cpu import CpuTimer
from opgauge.harness.result.result import Check
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.inputs import Inputs, make_inputs, with_derived
from opgauge.harness.worker.verify import Expected, expect
from opgauge.ops import Kernel, KernelKey, dtype_info

Array = NDArray[Any]
Mutant = Callable[["Subject", str, Array, Array], None]
"""(subject, output's name, right output, buffer to write)"""

TAIL = 0.03
POISON = 0xFF
MUTANTS: dict[str, Mutant] = {}


@dataclass
class Subject:
    """A case with its inputs, what is right, and how often the kernel has been called."""

    case: Case
    inputs: Inputs
    expected: Expected
    right: Mapping[str, Array]
    calls: int = 0
    handed: dict[str, Array] = field(default_factory=dict)


def subject_of(case: Case, *, special: bool = False) -> Subject:
    """A subject with generated inputs; `special` strews zeros and one NaN among those of floats."""
    inputs = make_inputs(case)
    if special:
        inputs = with_derived(case, {name: _strewn(value) for name, value in inputs.values.items()})
    expected = expect(case, inputs)
    with np.errstate(all="ignore"):
        right = {
            name: np.asarray(expected.values[name]).astype(dtype_info(spec.dtype).numpy)
            for name, spec in expected.specs.items()
            if spec.view_of is None
        }
    return Subject(case, inputs, expected, right)


def judge(subject: Subject, mutant: Mutant | None) -> Check:
    """What the checker says of `mutant`, or of the right outputs where it is None."""
    subject.calls = 0
    kernel = kernel_of(subject, mutant)
    return Attempt(subject.case, kernel, subject.inputs.values, CpuTimer()).judge(subject.expected)


def applies(subject: Subject, mutant: Mutant) -> bool:
    """Whether `mutant` leaves anything else than the right outputs, in two calls."""
    if mutant is mutate_input:
        return any(value.size for value in subject.inputs.values.values())
    for number in (1, 2):
        subject.calls = number
        subject.handed = {name: value.copy() for name, value in subject.inputs.values.items()}
        for name, right in subject.right.items():
            out = np.full(right.nbytes, POISON, np.uint8).view(right.dtype).reshape(right.shape)
            with np.errstate(all="ignore"):
                mutant(subject, name, right, out)
                same = _same(out, right)
            if not same:
                return True
    return False


def kernel_of(subject: Subject, mutant: Mutant | None) -> Kernel:
    """A kernel that writes the right outputs, changed by `mutant`."""

    def run(*, out: dict[str, Array], **arguments: Any) -> tuple[Any, ...]:
        subject.calls += 1
        subject.handed = {name: arguments[name] for name in subject.inputs.values}
        for name, buffer in out.items():
            if mutant is None:
                buffer[...] = subject.right[name]
            else:
                with np.errstate(all="ignore"):
                    mutant(subject, name, subject.right[name], buffer)
        return tuple(_view(subject, name, arguments) for name in subject.expected.specs)

    return Kernel(KernelKey(subject.case.op, "mutant", "cpu", subject.case.dtype), run)


def _view(subject: Subject, name: str, arguments: Mapping[str, Any]) -> Any:
    spec = subject.expected.specs[name]
    return None if spec.view_of is None else arguments[spec.view_of].reshape(spec.shape)


def _strewn(value: Array) -> Array:
    if value.dtype.kind in "biu" or value.size < 2:
        return value
    flat = value.copy().reshape(-1)
    flat[::7] = 0
    flat[-1] = np.nan
    return flat.reshape(value.shape)


def _same(first: Array, second: Array) -> bool:
    if first.dtype == np.bool_:
        return bool(np.array_equal(first.view(np.uint8), second.view(np.uint8)))
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    return bool(np.array_equal(first.astype(wide), second.astype(wide), equal_nan=True))


def mutant(function: Mutant) -> Mutant:
    """Enter `function` among the mutants that every op is tried with."""
    MUTANTS[function.__name__] = function
    return function


def _is_inexact(array: Array) -> bool:
    return dtype_info(array.dtype.name).kind in ("float", "complex")


@mutant
def zeros(subject: Subject, name: str, right: Array, out: Array) -> None:
    """All zero: what slips through a tolerance that is not relative to the output's scale."""
    del subject, name, right
    out[...] = 0


@mutant
def nothing(subject: Subject, name: str, right: Array, out: Array) -> None:
    """The output is never written."""


@mutant
def skipped_last(subject: Subject, name: str, right: Array, out: Array) -> None:
    """The last element is left out: an off-by-one in the guard."""
    del subject, name
    if right.size:
        _copy_flat(right, out, slice(0, right.size - 1))


@mutant
def skipped_first(subject: Subject, name: str, right: Array, out: Array) -> None:
    """The first element is left out."""
    del subject, name
    _copy_flat(right, out, slice(1, right.size))


@mutant
def skipped_tail(subject: Subject, name: str, right: Array, out: Array) -> None:
    """The last three per cent are left out: a grid rounded down."""
    del subject, name
    _copy_flat(right, out, slice(0, int(right.size * (1 - TAIL))))


@mutant
def swapped_strides(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Axes exchanged in memory."""
    del subject, name
    out[...] = np.ascontiguousarray(right.T).reshape(right.shape)


@mutant
def backwards(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Elements in reverse order."""
    del subject, name
    out[...] = right.reshape(-1)[::-1].reshape(right.shape)


@mutant
def shifted(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Everything one element too far."""
    del subject, name
    out[...] = np.roll(right.reshape(-1), 1).reshape(right.shape)


@mutant
def scaled(subject: Subject, name: str, right: Array, out: Array) -> None:
    """A thousandth too large, or four units of a coarser dtype."""
    del subject, name
    info = dtype_info(right.dtype.name)
    out[...] = (_wide(right) * (1 + max(1e-3, 4 * info.epsilon))).astype(out.dtype)


@mutant
def negated(subject: Subject, name: str, right: Array, out: Array) -> None:
    """The sign flipped."""
    del subject, name
    out[...] = ~right if right.dtype == np.bool_ else (0 - right).astype(out.dtype)


@mutant
def doubled(subject: Subject, name: str, right: Array, out: Array) -> None:
    """An exponent off by one."""
    del subject, name
    out[...] = (_wide(right) * 2).astype(out.dtype)


@mutant
def one_doubled(subject: Subject, name: str, right: Array, out: Array) -> None:
    """An exponent off by one in a single element, the largest."""
    del subject, name
    out[...] = right
    if right.size:
        place = int(np.argmax(np.nan_to_num(np.abs(_wide(right)), posinf=0).reshape(-1)))
        out.reshape(-1)[place] = (_wide(right).reshape(-1)[place] * 2).astype(out.dtype)


@mutant
def one_more(subject: Subject, name: str, right: Array, out: Array) -> None:
    """One more in every element: a loop that counts from one."""
    del subject, name
    out[...] = ~right if right.dtype == np.bool_ else (_wide(right) + 1).astype(out.dtype)


@mutant
def tf32(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Ten bits of mantissa, as TF32 keeps, in place of float32's 23 or float64's 52."""
    del subject, name
    out[...] = _truncated(right)


@mutant
def half_precision(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Computed in float16."""
    del subject, name
    if right.dtype.kind == "c":
        out[...] = right.real.astype(np.float16) + 1j * right.imag.astype(np.float16)
    elif _is_inexact(right) and right.dtype.itemsize > 2:
        out[...] = right.astype(np.float16).astype(out.dtype)
    else:
        out[...] = right


@mutant
def nan_at_zeros(subject: Subject, name: str, right: Array, out: Array) -> None:
    """0 / 0 where a mask should have given 0."""
    del subject, name
    out[...] = np.where(right == 0, np.nan, right).astype(out.dtype) if _is_inexact(right) else right


@mutant
def nan_swallowed(subject: Subject, name: str, right: Array, out: Array) -> None:
    """0 where NaN should have come through."""
    del subject, name
    out[...] = np.where(np.isnan(right), 0, right).astype(out.dtype) if _is_inexact(right) else right


@mutant
def mutate_input(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Right outputs, and a changed input; changed once, as a second time would undo it."""
    out[...] = right
    if name != next(iter(subject.right)):
        return
    for value in subject.handed.values():
        if value.size:
            value.reshape(-1).view(np.uint8)[0] += 1


@mutant
def right_then_wrong(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Right in the first call, not in the second: a counter that is not reset."""
    del name
    out[...] = right
    if subject.calls > 1 and right.size:
        out.reshape(-1)[0] = out.reshape(-1)[0] == 0


@mutant
def only_once(subject: Subject, name: str, right: Array, out: Array) -> None:
    """Written in the first call only: a cached output."""
    del name
    if subject.calls == 1:
        out[...] = right


@mutant
def race(subject: Subject, name: str, right: Array, out: Array) -> None:
    """A few elements come from another place, others each call."""
    del name
    out[...] = right
    flat = right.reshape(-1)
    if flat.size:
        rng = np.random.default_rng(subject.calls)
        places = rng.integers(0, flat.size, max(flat.size // 100, 3))
        out.reshape(-1)[places] = flat[(places + flat.size // 2) % flat.size]


def _copy_flat(right: Array, out: Array, part: slice) -> None:
    out.reshape(-1)[part] = right.reshape(-1)[part]


def _wide(array: Array) -> Array:
    kind = dtype_info(array.dtype.name).kind
    if kind == "complex":
        return array.astype(np.complex128)
    return array.astype(np.float64) if kind == "float" else array.astype(np.int64)


def _truncated(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.asarray(_truncated(array.real) + 1j * _truncated(array.imag))
    if array.dtype == np.float32:
        return (np.ascontiguousarray(array).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if array.dtype == np.float64:
        keep = np.uint64(0xFFFFFC0000000000)
        return (np.ascontiguousarray(array).view(np.uint64) & keep).view(np.float64)
    return array
