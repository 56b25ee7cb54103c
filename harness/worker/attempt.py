"""One attempt of a kernel on buffers: bound, called, timed, and its outputs checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from opgauge.harness.case.case import Case
from opgauge.harness.counting import counted
from opgauge.harness.measure import Hooks, Limits, Timed, Timer, UnfinishedError
from opgauge.harness.project import active
from opgauge.harness.result.failure import classify
from opgauge.harness.result.result import Check, Status
from opgauge.harness.worker.bits import address_of, digest, has_bits, in_place, is_array, laziness, typed
from opgauge.harness.worker.buffers import Buffers, copy_beside
from opgauge.harness.worker.device_settings import has_strange_context
from opgauge.harness.worker.inputs import empty_bytes, on_host
from opgauge.harness.worker.places import MovableTensors, PlacedCalls
from opgauge.harness.worker.verify import Expected, check, judged_by
from opgauge.ops import Bound, Kernel
from opgauge.ops._core.backend import to_torch
from opgauge.ops._core.op import Array


class WrongError(Exception):
    """A kernel that ran and left wrong results."""

    def __init__(self, reason: str, found: Check | None = None) -> None:
        super().__init__(reason)
        self.check = found


class KernelFailedError(Exception):
    """A kernel that raised; `status` classifies the exception."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Trusted:
    """Outputs of the same kernel and case that were checked in another process, by the digest of their bits.

    fingerprint: if another tree checked them, the digest of the inputs and of the code of the check.
    """

    digest: str
    check: Check
    fingerprint: str = ""


Reference = Expected | Callable[[], Expected]
"""Expected outputs, or a function that computes them when needed."""


class Attempt:
    """A kernel with its buffers; `repeatable` while every call has given the same bits."""

    def __init__(
        self,
        case: Case,
        kernel: Kernel,
        values: Mapping[str, Array],
        timer: Timer,
        *,
        layout: str | None = None,
        trusted: Trusted | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        """`trusted` outputs need no reference.

        layout: of all inputs, and of the outputs too if it is "offset"; None: the layout of the case. buffers:
        buffers that others share for the same case on the same device.
        """
        self.case = case
        self.kernel = kernel
        self.timer = timer
        self.buffers = buffers or Buffers(case, values, kernel.key.backend, layout=layout)
        self.accepted: dict[str, Array] = {}
        self.accepted_check: Check | None = None
        self.trusted = trusted
        self.repeatable = True
        self._tensors: MovableTensors | None = None
        self._places: PlacedCalls | None = None

    @property
    def captures_inputs(self) -> bool:
        """Whether binding may depend on the inputs' values, as an autograd graph does: they must not change later."""
        return bool(getattr(self.kernel, "captures_inputs", self.kernel.arrays == "torch"))

    def judge(self, expected: Expected) -> Check:
        """Bind and call twice, without timing; faults are in the check.

        Raises KernelFailedError if the kernel raises.
        """
        try:
            call = self.bind()
            self.check(self.call(call, 0), expected, "in the first call")
            return self.check(self.call(call, 1), expected, "in the second call")
        except WrongError as error:
            if error.check is None:
                return Check(ok=False, max_abs_error=inf, max_rel_error=inf, worst=inf, reason=str(error))
            return error.check

    def bind(self) -> Bound:
        """The kernel bound to the buffers, while outputs are poisoned and inputs have other values.

        Kernels that capture inputs get their true values.
        """
        self.buffers.poison(0)
        with nullcontext() if self.captures_inputs else self.buffers.decoy():
            return self._bind(self.buffers)

    def _bind(self, buffers: Buffers) -> Bound:
        """The kernel bound to views of buffers: it may change shape and flags of its arrays."""
        kernel, backend = self.kernel, self.kernel.key.backend
        workspace = None
        if kernel.workspace is not None:
            workspace = empty_bytes(kernel.workspace(self.case.resolved, self.case.params), backend)
            workspace[...] = 0
        if kernel.arrays == "torch":
            self._tensors = MovableTensors(buffers)
            inputs, out = self._tensors.inputs, self._tensors.out
            workspace = None if workspace is None else to_torch(workspace)
        else:
            inputs, out = ({name: array.view() for name, array in one.items()} for one in (buffers.inputs, buffers.out))
        with _blamed_on_kernel():
            return kernel.bind(inputs, self.case.params, out, workspace)

    def call(self, call: Bound, turn: int) -> Any:
        """Poison the outputs and call once; returns the call's value.

        Raises WrongError if another CUDA context is current then.
        """
        self.buffers.poison(turn)
        with _blamed_on_kernel():
            returned = call()
            self.timer.synchronize()
        if has_strange_context():
            msg = "left another CUDA context current"
            raise WrongError(msg)
        return returned

    def blamed(self, call: Bound) -> Any:
        """The call's value, without waiting for its work; exceptions are attributed to the kernel."""
        with _blamed_on_kernel():
            return call()

    def measure(self, call: Bound, limits: Limits, hooks: Hooks | None = None) -> Timed:
        """Time calls; hooks run before and after each sample. Raises WrongError if they do.

        Small calls on a GPU have a hot time of calls at several addresses.
        """
        with _blamed_on_kernel():
            if self._places is None or self._places.call is not call:
                self._places = PlacedCalls(call, self.buffers, self._bind, self._tensors)
            places = self._places
            places.poison()
            try:
                timed = self.timer.measure(call, limits, hooks, places.calls)
                self.timer.synchronize()
            finally:
                places.move_back()
        if timed.returned is None and timed.measurement.hot_ns is not None and self.kernel.deterministic:
            wrong = places.wrong_output(self.accepted)
            if wrong:
                reason = f"{wrong} has other values at another address"
                raise WrongError(reason)
        return timed

    def check(self, returned: Any, expected: Reference, when: str) -> Check:
        """Check outputs, guards and inputs in their present state; raises WrongError."""
        outputs = self.outputs(returned)
        found = self._check_outputs(outputs, expected)
        if not found.ok:
            reason = f"{found.reason} ({when})"
            raise WrongError(reason, replace(found, reason=reason))
        violation = self.buffers.out_of_bounds_write()
        if violation:
            reason = f"{violation} ({when})"
            raise WrongError(reason, replace(found, ok=False, reason=reason))
        return found

    def check_first(self, returned: Any, expected: Reference) -> Check:
        """Check the first call; raises WrongError, which tells a kernel that has to declare `captures_inputs`."""
        try:
            return self.check(returned, expected, "in the first call")
        except WrongError as error:
            if self.captures_inputs or error.check is None or not self._is_right_if_bound_again(expected):
                raise
            reason = (
                f"{error}; right if prepared on these inputs: declare captures_inputs=True if it has to read them then"
            )
            raise WrongError(reason, replace(error.check, reason=reason)) from error

    def _is_right_if_bound_again(self, expected: Reference) -> bool:
        """Whether the kernel computes the result when it is bound while inputs have their true values."""
        try:
            self.check(self.call(self._bind(self.buffers), 0), expected, "bound again")
        except (WrongError, KernelFailedError):
            return False
        return True

    def digests(self, returned: Any, *, with_fingerprint: bool = False) -> dict[str, str]:
        """Fields of `Trusted`: the digest of the outputs' bits and, if requested, the fingerprint of the check."""
        found = {"digest": digest(self.outputs(returned))}
        return {**found, "fingerprint": self._fingerprint} if with_fingerprint else found

    @property
    def _fingerprint(self) -> str:
        return f"{self.buffers.digest} {judged_by(self.case.op)}"

    def _known(self, found_outputs: dict[str, Any]) -> Check | None:
        """The check of the same outputs elsewhere, if they were checked in the same way."""
        trusted = self.trusted
        if trusted is None or digest(found_outputs) != trusted.digest:
            return None
        return trusted.check if not trusted.fingerprint or trusted.fingerprint == self._fingerprint else None

    def is_accepted(self, outputs: Mapping[str, Any]) -> bool:
        """Whether outputs have the bits of the accepted ones."""
        return all(name in outputs and has_bits(outputs[name], array) for name, array in self.accepted.items())

    def _check_outputs(self, found_outputs: dict[str, Any], expected: Reference) -> Check:
        """Check outputs; outputs with the bits of accepted ones, here or in another process, are not checked again."""
        accepted = self.accepted_check
        if accepted is not None and self.is_accepted(found_outputs):
            return accepted
        known = self._known(found_outputs) if accepted is None else None
        if known is not None:
            found = known
        else:
            outputs = on_host(found_outputs)
            found = check(outputs, expected() if callable(expected) else expected, self.kernel.relaxed)
        self.repeatable = self.repeatable and accepted is None
        if found.ok and accepted is None:
            self.accepted_check = found
            self.accepted = {name: copy_beside(array) for name, array in found_outputs.items()}
        return found

    def outputs(self, returned: Any) -> dict[str, Any]:
        """Outputs by name: returned ones if the kernel returns a tuple, else the buffers.

        Code of classes from elsewhere, which could compute now, is not called: `isinstance` reads `__class__`.
        """
        specs, inputs = self.case.resolved.outputs, self.buffers.inputs
        is_tuple = issubclass(type(returned), tuple)
        items = list(tuple.__iter__(returned)) if is_tuple else []
        if is_tuple and len(items) != len(specs):
            reason = f"returned {counted(len(items), 'output')} instead of {len(specs)}"
            raise WrongError(reason)
        given = dict(zip(specs, items, strict=False))
        is_returning = any(one is not None and specs[name].view_of is None for name, one in given.items())
        outputs = {}
        for name, spec in specs.items():
            array = typed(given.get(name), spec.dtype)
            if is_returning and given[name] is None:
                reason = f"returned None for {name}: return an array, or take `out` and fill it"
                raise WrongError(reason)
            if array is None:
                array = self.buffers.out.get(name)
            elif not is_array(array):
                kind = type(array).__name__
                reason = f"returned a {kind} for {name}: convert it to an array of NumPy, CuPy, torch, JAX or Numba"
                raise WrongError(reason)
            elif spec.view_of is not None and spec.size and address_of(array) != address_of(inputs[spec.view_of]):
                reason = f"{name} should be a view of {spec.view_of} and is a copy"
                raise WrongError(reason)
            if array is not None:
                outputs[name] = _in_place(name, array)
            if name in given and spec.view_of is None:
                self._check_own(name, outputs.get(name))
        return outputs

    def _check_own(self, name: str, array: Any) -> None:
        """Raise WrongError for a returned array whose elements were not written: they share memory, or an input's."""
        if not isinstance(array, np.ndarray) or not array.nbytes:
            return
        low, high = byte_bounds(array)
        sharing = [one for one, given in self.buffers.inputs.items() if _overlaps(given, low, high)]
        if sharing or _has_shared_elements(array):
            what = f"its input {sharing[0]}" if sharing else "fewer elements"
            reason = f"returned a view of {what} for {name}: copy it, since writing {name} is part of the work"
            raise WrongError(reason)


@contextmanager
def _blamed_on_kernel() -> Iterator[None]:
    """Attribute all exceptions within to the kernel, except NumPy's floating-point warnings."""
    try:
        with np.errstate(all="ignore"):
            yield
    except WrongError:
        raise
    except UnfinishedError as error:
        raise WrongError(str(error)) from error
    except Exception as error:
        status, reason = classify(error)
        raise KernelFailedError(status, reason + active.code_place(error)) from error


def _in_place(name: str, array: Any) -> Any:
    """An output as an array of NumPy or CuPy; raises WrongError if its values would be computed only now."""
    lazy = laziness(array)
    if lazy:
        reason = f"returned a tensor {lazy} for {name}: compute its values in the call"
        raise WrongError(reason)
    try:
        return in_place(array)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"returned a {type(array).__name__} for {name} that cannot be read: {error}"
        raise WrongError(reason) from error


def _overlaps(array: Any, low: int, high: int) -> bool:
    """Whether an array of NumPy has memory between two addresses."""
    if not isinstance(array, np.ndarray) or not array.nbytes:
        return False
    start, end = byte_bounds(array)
    return bool(start < high and low < end)


def _has_shared_elements(array: Array) -> bool:
    """Whether elements of an array share memory, such as those of a broadcast one, by its strides."""
    nbytes = array.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size > 1:
            if stride < nbytes:
                return True
            nbytes += stride * (size - 1)
    return False
