"""Verification: whether outputs agree with the float64 reference within the bound of their dtype.

An element is right if |got - expected| <= bound + one rounding to the output's dtype. NaN must match NaN, and an
infinity one of its sign; if the bound is infinite, any number is right besides. If the reference is beyond the
dtype's range, the output must be infinite or within the bound. A negative bound permits an output that is not finite,
and a sign may be required of outputs (ops/_core/overflow.py).
Integers and bool are exact. Arrays are processed in chunks, so that a check needs little memory besides the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from opgauge import ops
from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Check
from opgauge.harness.worker.inputs import Inputs
from opgauge.ops import DtypeInfo, Op, TensorSpec, dtype_info, find_op
from opgauge.ops._core.op import Array

SIGN_OF, SIGNED_NUMBER = "sign of {}", 2.0
"""Key of an output's sign among the bounds, and its value for outputs that are no NaN: see `ops._core.overflow`."""
NEXT_TO = "next to {}"
"""Key of the distances by which elements of an exact output may differ: see `ops._function.near_ties`."""
CHUNK = 1 << 16
"""Elements per chunk."""
SHARE_OF_ULP = 0.5
"""Largest error of rounding to nearest, in units in the last place."""


@dataclass(frozen=True)
class Expected:
    """Expected outputs of one case: values and allowed absolute errors, by output."""

    specs: Mapping[str, TensorSpec]
    values: Mapping[str, Array]
    bounds: Mapping[str, Array | float]
    _scales: dict[str, float] = field(default_factory=dict)

    def scale(self, name: str) -> float:
        """Mean magnitude of an output: errors of smaller elements are relative to it."""
        if name not in self._scales:
            self._scales[name] = _mean_size(self.values[name])
        return self._scales[name]


def expect(case: Case, inputs: Inputs, *, threads: int | None = None) -> Expected:
    """Compute the reference and the bounds of `case`, once for all implementations.

    threads: most threads of NumPy's BLAS; None: its default. With more threads than CPUs, those of several
    processes wait for each other in spin loops, and take one and a half times as long.
    """
    op = find_op(case.op)
    specs = case.resolved.outputs
    with _blas().limit(limits=threads, user_api="blas"), np.errstate(all="ignore"):
        values, bounds = _evaluate(op, inputs.wide, case)
        if _overflows(inputs.wide, values, bounds):
            wider = {name: _wider(value) for name, value in inputs.wide.items()}
            values, bounds = _evaluate(op, wider, case)
            values, bounds = _rounded(values), _rounded(_reaching(values, bounds))
    for name, spec in specs.items():
        if values[name].shape != spec.shape:
            msg = f"{case.op}: the reference's {name} is {values[name].shape}, not {spec.shape} as for other values"
            raise ValueError(msg)
        if values[name].dtype.kind in "fc" and values[name].dtype.itemsize < dtype_info(spec.dtype).numpy.itemsize:
            msg = f"{case.op}: the reference's {name} is {values[name].dtype}, not {spec.dtype}: do not convert it"
            raise ValueError(msg)
    return Expected(specs, values, bounds)


def _evaluate(op: Op, arrays: Mapping[str, Array], case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Reference and bounds of `case` for wide inputs."""
    values = op.expected(arrays, case.params)
    bounds = op.bound(arrays, values, case.params, case.dtype)
    return values, {name: np.asarray(value) for name, value in bounds.items()}


def _overflows(inputs: Mapping[str, Array], values: Mapping[str, Array], bounds: Mapping[str, Array]) -> bool:
    """Whether float64 overflows: results or bounds of finite inputs are not finite."""
    results = (*values.values(), *bounds.values())
    return not all(map(_is_finite, results)) and all(map(_is_finite, inputs.values()))


def _is_finite(array: Array) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _wider(value: Array) -> Array:
    """Floats and complex numbers in the processor's widest dtype, whose exponents usually have more bits."""
    return value.astype({"f": np.longdouble, "c": np.clongdouble}.get(value.dtype.kind, value.dtype), copy=False)


def _reaching(values: Mapping[str, Array], bounds: Mapping[str, Array]) -> dict[str, Array]:
    """Bounds in the widest dtype, at least the largest double where a value exceeds it and a double may be right."""
    found, largest = dict(bounds), np.finfo(np.float64).max
    for name in values.keys() & bounds.keys():
        size, bound = np.abs(values[name]), np.abs(bounds[name])
        is_near = (size > largest) & (size - bound <= largest)
        found[name] = np.where(is_near, np.copysign(np.maximum(bound, largest), bounds[name]), bounds[name])
    return found


def _rounded(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays rounded from the widest dtype to float64 or complex128."""
    kinds = {"f": np.float64, "c": np.complex128}
    return {name: value.astype(kinds.get(value.dtype.kind, value.dtype)) for name, value in arrays.items()}


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def judged_by(op: str) -> str:
    """A digest of the Python code that makes inputs and reference of an op: its folder's, and the shared code.

    An op of a project tells the code that its own function reaches.
    """
    root = Path(ops.__path__[0])
    reference = find_op(op).reference
    own = Path(reference.__code__.co_filename).parent
    total = sha256(getattr(reference, "digest", str)().encode())
    for path in sorted({*own.glob("*.py"), *root.glob("_core/*.py")}):
        total.update(path.read_bytes())
    return total.hexdigest()


def check(outputs: Mapping[str, Array], expected: Expected, relaxed: float = 1.0) -> Check:
    """Compare all outputs with the expected ones; `relaxed` multiplies the bounds."""
    found = []
    for name, spec in expected.specs.items():
        misfit = _misfit(name, outputs.get(name), spec)
        if misfit:
            return Check(ok=False, max_abs_error=inf, max_rel_error=inf, worst=inf, reason=misfit)
        found.append(_check_output(name, outputs[name], expected, relaxed))
    return merge(found)


def merge(checks: list[Check]) -> Check:
    """The worst of several checks, with the reason of the first that failed."""
    return Check(
        ok=all(item.ok for item in checks),
        max_abs_error=max((item.max_abs_error for item in checks), default=0.0),
        max_rel_error=max((item.max_rel_error for item in checks), default=0.0),
        worst=max((item.worst for item in checks), default=0.0),
        reason=next((item.reason for item in checks if not item.ok), ""),
    )


def _misfit(name: str, output: Any, spec: TensorSpec) -> str:
    if output is None:
        return f"{name}: no such output came back"
    if tuple(output.shape) != spec.shape:
        return f"{name}: shape {list(output.shape)} instead of {list(spec.shape)}"
    if output.dtype != dtype_info(spec.dtype).numpy:
        return f"{name}: dtype {output.dtype.name} instead of {spec.dtype}"
    return ""


class _Judged(NamedTuple):
    """Errors of a chunk, and each divided by the allowed error: right means <= 1."""

    error: Array
    excess: Array


@dataclass
class _Tally:
    """Running statistics of one output."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    worst: float = 0.0
    wrong: int = 0
    first: int = -1
    first_excess: float = 0.0

    def add(self, start: int, judged: _Judged, size: Array) -> None:
        """Count a chunk that starts at element `start`; errors are relative to `size`."""
        self.max_abs = max(self.max_abs, float(np.max(judged.error)))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative = np.max(judged.error / size)
        self.max_rel = max(self.max_rel, inf if np.isnan(relative) else float(relative))
        worst = float(np.max(judged.excess))
        self.worst = max(self.worst, worst)
        if worst > 1:
            wrong = judged.excess > 1
            if self.first < 0:
                place = int(np.argmax(wrong))
                self.first, self.first_excess = start + place, float(judged.excess[place])
            self.wrong += int(np.count_nonzero(wrong))


def _check_output(name: str, output: Array, expected: Expected, relaxed: float) -> Check:
    reference, bound = expected.values[name], expected.bounds.get(name, 0.0)
    signed = expected.bounds.get(SIGN_OF.format(name), 0.0)
    info = dtype_info(output.dtype.name)
    exact = info.kind not in ("float", "complex")
    tally = _Tally()
    bounds = (expected.bounds.get(NEXT_TO.format(name), 0.0), 0.0) if exact else (bound, signed)
    for start, got, want, (allowed, sign) in _parts(output, reference, bounds):
        judged = _judge_exact(got, want, allowed) if exact else _judge(got, want, allowed * relaxed, info, sign)
        size = np.maximum(np.abs(want) if want.dtype != np.bool_ else 1.0, expected.scale(name))
        tally.add(start, judged, size)
    reason = _reason(name, output, reference, tally) if tally.wrong else ""
    return Check(tally.wrong == 0, tally.max_abs, tally.max_rel, tally.worst, reason)


def _parts(
    output: Array, reference: Array, bounds: tuple[Array | float, ...]
) -> Iterator[tuple[int, Array, Array, list[Array | float]]]:
    """Chunks of output, reference and bounds, with the number of their first element."""
    got, want = np.ascontiguousarray(output).reshape(-1), np.ascontiguousarray(reference).reshape(-1)
    readers = [_chunks_of(bound, reference.shape) for bound in bounds]
    for start in range(0, got.size, CHUNK):
        part = slice(start, min(start + CHUNK, got.size))
        yield start, got[part], want[part], [read(part) for read in readers]


def _chunks_of(bound: Array | float, shape: tuple[int, ...]) -> Callable[[slice], Array | float]:
    """Function that returns a chunk of a bound, which broadcasts to the output's shape."""
    bounds = np.asarray(bound, np.float64)
    if bounds.size == 1:
        number = float(bounds.reshape(-1)[0])
        return lambda _: number
    flat = bounds.reshape(-1) if bounds.shape == shape else np.broadcast_to(bounds, shape).flat
    return lambda part: np.asarray(flat[part])


def _judge(got: Array, want: Array, bound: Array | float, info: DtypeInfo, sign: Array | float = 0.0) -> _Judged:
    if info.kind == "complex":
        real = _judge(got.real, want.real, bound, _PART[info.name])
        imaginary = _judge(got.imag, want.imag, bound, _PART[info.name])
        return _Judged(np.maximum(real.error, imaginary.error), np.maximum(real.excess, imaginary.excess))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = got.astype(np.float64)
        expected = want.astype(np.float64, copy=False)
        error = np.abs(wide - expected)
        may_overflow, bound = np.less(bound, 0), np.abs(bound)
        reach = np.abs(expected) + bound
        # half a unit in the last place of numbers up to `reach`
        allowed = bound + SHARE_OF_ULP * (info.epsilon * reach + _TINIEST[info.name])
        excess = error / allowed
        if np.any(sign):
            excess = np.where(np.not_equal(sign, 0) & (np.sign(wide) * np.sign(expected) < 0), inf, excess)
    overflow = info.largest * (1 + info.epsilon / 4)
    if np.max(reach) < overflow and np.isfinite(np.max(excess)):
        return _Judged(error, excess)
    with np.errstate(invalid="ignore"):
        same = (np.isnan(wide) & np.isnan(expected)) | (wide == expected)
        has_sign = np.isinf(wide) & (np.sign(wide) == np.sign(expected))
        # the reference exceeds float64, and so nearly does the error
        unbounded = may_overflow & ~np.isfinite(expected) & np.greater(bound, info.largest / 4)
        # the bound exceeds float64, and so may the error; the reference is not finite by rounding alone
        unbounded |= np.isinf(bound) & (np.isfinite(expected) | ~may_overflow)
        unbounded &= np.equal(sign, 0) | (wide * np.sign(expected) >= 0)
        farthest = expected * np.sign(wide) + bound  # on the side of the output
    overflowed = np.isinf(wide) & (farthest >= overflow) & np.isfinite(expected)
    permitted = has_sign | np.equal(sign, 0) | (np.isnan(wide) & np.less(sign, SIGNED_NUMBER))
    right = same | overflowed | (may_overflow & ~np.isfinite(wide) & permitted) | (unbounded & np.isfinite(wide))
    hopeless = ~right & ~(np.isfinite(wide) & np.isfinite(expected) & np.isfinite(excess))
    return _Judged(
        np.where(right, 0.0, np.where(hopeless, inf, error)),
        np.where(right, 0.0, np.where(hopeless, inf, excess)),
    )


def _judge_exact(got: Array, want: Array, allowed: Array | float) -> _Judged:
    """Compare bool by its byte, and integers with the wrapped reference; an error is at least 1.

    allowed: distance of elements that rounding may change.
    """
    if got.dtype == np.bool_:
        error = np.abs(got.view(np.uint8).astype(np.float64) - np.asarray(want, np.bool_))
    else:
        same = got == (want.astype(got.dtype) if want.dtype.kind in "iu" else want)
        distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
        error = np.where(same, 0.0, np.maximum(distance, 1.0))
    return _Judged(error, np.where(error <= allowed, 0.0, inf))


def _mean_size(values: Array) -> float:
    """Mean magnitude of the finite elements; 1 for bool and without any."""
    if values.dtype == np.bool_:
        return 1.0
    total, count = 0.0, 0
    flat = values.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        size = np.abs(flat[start : start + CHUNK])
        finite = size[np.isfinite(size)]
        # divided first: the sum of the largest numbers overflows
        total, count = total + float(np.sum(finite / flat.size, dtype=np.float64)), count + finite.size
    return total * (flat.size / count) if total else 1.0


def _reason(name: str, output: Array, reference: Array, tally: _Tally) -> str:
    place = np.unravel_index(tally.first, reference.shape)
    index = ", ".join(str(int(item)) for item in place)
    where = f"{name}[{index}]" if index else name
    got, want = output[place], reference[place]
    verb = "is" if tally.wrong == 1 else "are"
    many = f"{tally.wrong} of {reference.size} elements {verb} wrong" if reference.size > 1 else "it is wrong"
    excess = f", {tally.first_excess:.3g} times the allowed error" if np.isfinite(tally.first_excess) else ""
    shown, wanted = _number(got), _number(want)
    if shown == wanted:
        shown, wanted = _number(got, digits=17), _number(want, digits=17)
    return f"{where} is {shown}, expected {wanted}{excess}; {many}"


def _number(value: Any, digits: int = 9) -> str:
    kind = np.asarray(value).dtype.kind
    if kind == "b":
        return str(bool(value))
    if kind in "iu":
        return str(int(value))
    return f"{complex(value):.{digits}g}" if kind == "c" else f"{float(value):.{digits}g}"


_TINIEST = {
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float32": 2.0**-149,
    "float64": 2.0**-1073,
}
"""The smallest positive numbers, subnormals included (float64: twice that, so that half of it is not 0)."""
_PART = {"complex64": dtype_info("float32"), "complex128": dtype_info("float64")}
