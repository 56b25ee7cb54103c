"""Rules for cases of an op: known fields with their types, and whether they fit together. Needs no device."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from opgauge.harness.case.case import Case, GatePolicy, InputSpec
from opgauge.harness.case.hint import did_you_mean, record_hints
from opgauge.harness.errors import CaseError
from opgauge.ops import (
    AxisError,
    DtypeError,
    Op,
    OpError,
    OpNotFoundError,
    ShapeError,
    Shapes,
    all_ops,
    find_op,
    param_values,
)

Shape = tuple[int, ...]
MAX_ELEMENTS = 2**40
"""Most elements of a tensor."""
MAX_RANK = 32
"""Highest rank of a tensor."""
SECTIONS = ("shapes", "params", "inputs")
"""Sections of a case whose entries are part of its identity."""
USED_BY = {
    "low": ("uniform", "integers"),
    "high": ("uniform", "integers"),
    "mean": ("normal",),
    "std": ("normal",),
    "value": ("constant",),
}
"""Kinds of distribution that use each field of InputSpec."""


def known_op(name: str) -> Op:
    """The op called `name`; raises CaseError with the nearest name."""
    try:
        return find_op(name)
    except OpNotFoundError:
        hint = did_you_mean(name, (op.name for op in all_ops()))
        msg = f"unknown op {name!r}{hint}"
        raise CaseError(msg, "op") from None


@cache
def field_hints(name: str) -> dict[str, Any]:
    """The type of every field that decides a case's identity, by dotted path (`params.porder`)."""
    op = known_op(name)
    hints: dict[str, Any] = {"dtype": Literal[op.dtypes]}
    hints.update({f"shapes.{item.name}": Shape for item in op.inputs})
    hints.update({f"params.{key}": hint for key, hint in record_hints(op.params).items()})
    for item in op.inputs:
        hints.update({f"inputs.{item.name}.{key}": hint for key, hint in record_hints(InputSpec).items()})
    return hints


def known_field(op: Op, path: str) -> Any:
    """The type of the field at `path`; raises CaseError with the nearest name of the same section."""
    hints = field_hints(op.name)
    if path in hints:
        return hints[path]
    section, _, rest = path.partition(".")
    name, _, key = rest.partition(".")
    names = [item.name for item in op.inputs]
    if section == "params":
        what, known = f"{op.name} has no parameter {rest!r}", list(record_hints(op.params))
    elif section in ("shapes", "inputs") and rest and name not in names:
        what, known = f"{op.name} has no input {name!r}", names
    elif section == "inputs" and key:
        what, known = f"unknown key {key!r} of inputs.{name}", list(record_hints(InputSpec))
    else:
        what, known = f"unknown field {path!r}", list(hints)
    wrong = key if section == "inputs" and name in names and key else rest or path
    msg = f"{what}{did_you_mean(wrong if section in SECTIONS else path, known)}"
    raise CaseError(msg, path)


def build_case(op: Op, values: Mapping[str, Any], **rest: Any) -> Case:
    """A case from `values` by dotted path, already of the right types.

    Without a dtype the case has that of an op that takes one only. `rest` is passed to Case. Raises CaseError with the
    path of the field at fault.
    """
    if "dtype" not in values:
        if len(op.dtypes) != 1:
            msg = f"dtype is missing; {op.name} takes {', '.join(op.dtypes)}"
            raise CaseError(msg, "dtype")
        values = {**values, "dtype": op.dtypes[0]}
    shapes = _section(values, "shapes")
    for name, shape in shapes.items():
        check_shape(f"shapes.{name}", shape)
    given = _section(values, "params")
    params = _params(op, shapes, given)
    resolved = _infer(op, shapes, values["dtype"], params, given)
    shapes = dict(_without_derived(op, shapes, values["dtype"], params))
    inputs = _inputs(values, op, resolved)
    return Case(op=op.name, shapes=shapes, dtype=values["dtype"], params=params, inputs=inputs, **rest)


def check_shape(path: str, shape: Shape) -> None:
    """Raises CaseError for a negative length, a rank over 32 or over 2**40 elements."""
    if any(length < 0 for length in shape):
        msg = f"shape {list(shape)} has a negative length"
        raise CaseError(msg, path)
    if len(shape) > MAX_RANK:
        msg = f"a shape of rank {len(shape)}; at most {MAX_RANK} is supported"
        raise CaseError(msg, path)
    if math.prod(shape) > MAX_ELEMENTS:
        msg = f"shape {list(shape)} has {math.prod(shape):.3g} elements; at most 2^40 are allowed"
        raise CaseError(msg, path)


def check_gate(gate: GatePolicy) -> GatePolicy:
    """The limits, checked; raises CaseError for a figure that is not finite and positive, or a share over 1."""
    for name, value in vars(gate).items():
        least_excluded = name != "max_launches"
        if value is None or isinstance(value, str):
            continue
        if not math.isfinite(value) or value < 0 or (least_excluded and value == 0):
            msg = f"{name} should be a positive number, not {value}"
            raise CaseError(msg, f"gate.{name}")
    if gate.min_ceiling is not None and gate.min_ceiling > 1:
        msg = f"min_ceiling is a share from 0 to 1, not {gate.min_ceiling}"
        raise CaseError(msg, "gate.min_ceiling")
    return gate


def _section(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    prefix = f"{section}."
    return {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}


def _params(op: Op, shapes: Mapping[str, Shape], given: Mapping[str, Any]) -> Any:
    for item in op.inputs:
        if item.required and item.name not in shapes:
            msg = f"{op.name} needs the shape of {item.name}"
            raise CaseError(msg, "shapes")
    defaults = param_values(op.params())
    for name in given:
        if name in shapes and given[name] != defaults[name]:
            msg = f"{name} is given both as a tensor (shapes.{name}) and as a parameter"
            raise CaseError(msg, f"params.{name}")
    try:
        return op.params(**given)
    except OpError as error:
        raise CaseError(str(error), _at_fault(error, given)) from error


def _infer(op: Op, shapes: Mapping[str, Shape], dtype: str, params: Any, given: Mapping[str, Any]) -> Shapes:
    try:
        resolved = op.infer(shapes, dtype, params)
    except OpError as error:
        raise CaseError(str(error), _at_fault(error, given)) from error
    for name, spec in (*resolved.inputs.items(), *resolved.outputs.items()):
        path = f"shapes.{name}" if name in shapes else "shapes"
        try:
            check_shape(path, spec.shape)
        except CaseError as error:
            msg = f"{name}: {error}"
            raise CaseError(msg, path) from error
    return resolved


def _at_fault(error: OpError, given: Mapping[str, Any]) -> str:
    """The field that an op's error is about, judged by its class and words; empty if unknown."""
    if isinstance(error, ShapeError):
        return "shapes"
    quoted = [name for name, value in given.items() if isinstance(value, str) and repr(value) in str(error)]
    if isinstance(error, DtypeError):
        return f"params.{quoted[0]}" if quoted else "dtype"
    words = re.findall(r"\w+", str(error))
    if isinstance(error, AxisError):
        words.append("axis")
    return next((f"params.{word}" for word in (*words, *quoted) if word in given), "")


def _without_derived(op: Op, shapes: Mapping[str, Shape], dtype: str, params: Any) -> Iterator[tuple[str, Shape]]:
    """The shapes except those that follow from the others; raises CaseError if one contradicts."""
    for name, shape in shapes.items():
        if not op.input(name).required:
            others = {key: value for key, value in shapes.items() if key != name}
            try:
                derived = op.infer(others, dtype, params).inputs.get(name)
            except OpError:
                derived = None
            if derived is not None and derived.shape != shape:
                msg = f"{name} follows from the other shapes: it is {list(derived.shape)}, not {list(shape)}"
                raise CaseError(msg, f"shapes.{name}")
            if derived is not None:
                continue
        yield name, shape


def _inputs(values: Mapping[str, Any], op: Op, resolved: Shapes) -> dict[str, InputSpec]:
    found: dict[str, dict[str, Any]] = {}
    for path, value in _section(values, "inputs").items():
        name, _, key = path.partition(".")
        if name not in resolved.inputs:
            msg = f"the case has no input {name}: give its shape, or omit it here"
            raise CaseError(msg, f"inputs.{path}")
        found.setdefault(name, {})[key] = value
    for name, spec in found.items():
        _check_distribution(f"inputs.{name}", spec, spec.get("kind") or op.input(name).kind)
    return {name: InputSpec(**spec) for name, spec in found.items()}


def _check_distribution(path: str, spec: Mapping[str, Any], kind: str) -> None:
    for key, kinds in USED_BY.items():
        value = spec.get(key)
        if value is None:
            continue
        if kind not in kinds:
            msg = f"{key} is for kind {' and '.join(kinds)}; this input is {kind}"
            raise CaseError(msg, f"{path}.{key}")
        if key != "value" and not math.isfinite(value):
            msg = f"{key} should be finite, not {value}"
            raise CaseError(msg, f"{path}.{key}")
    low, high, std = spec.get("low"), spec.get("high"), spec.get("std")
    if low is not None and high is not None and low > high:
        msg = f"low {low} is greater than high {high}"
        raise CaseError(msg, f"{path}.low")
    if std is not None and std < 0:
        msg = f"std {std} is negative"
        raise CaseError(msg, f"{path}.std")
