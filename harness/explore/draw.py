"""Random valid cases, drawn from an op's own description: inputs, shape rule, parameters, dtypes.

A case is drawn in one of two ways, each tried until the shape rule accepts it: from nothing (a random shape, other
inputs related to it by equality or broadcasting, parameters by type), or by changing a known case (lengths that agree
between inputs change together, parameters take other values). An op whose shape rule couples shapes and parameters more
closely proposes its own with `Op.propose`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log2, prod
from random import Random
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from opgauge.harness.case.case import EXPLORED, Case
from opgauge.harness.case.hint import members, record_hints
from opgauge.harness.case.rules import build_case
from opgauge.harness.errors import CaseError
from opgauge.ops import Op, Shape, param_values
from opgauge.ops._core.op import tensor_bytes

Values = dict[str, Any]
"""Fields of a case by dotted path, such as `shapes.x` and `params.axis`."""
ATTEMPTS = 400
"""Most attempts per case."""
HIGHEST_RANK = 5
"""Highest rank of a random shape."""
MINIMUM_BYTES = 16
"""Least bytes of a case."""
WHOLE = (-1, 0, 1, 1, 2, 2, 3, 4, 8)
"""Integers that kernels often treat as special cases, with weights by repetition."""
FLOATS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, -1.0, 1e-5, inf, -inf)
"""Numbers that kernels often treat as special cases."""
SPECIAL: dict[Any, tuple[Any, ...]] = {bool: (False, True), int: WHOLE, float: FLOATS, NoneType: (None,)}
"""Values by type that kernels often treat as special cases."""
DTYPE_WEIGHTS = {"float32": 8, "float16": 4, "bfloat16": 3, "float64": 2}
"""Relative frequency of a dtype; 1 for others."""


@dataclass(frozen=True, slots=True)
class CaseLimits:
    """Limits of a drawn case. bytes: of all inputs and outputs. flops: least work, done by a reference in float64."""

    bytes: int = 64 << 20
    flops: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class CaseSource:
    """Source of cases of one op. known: cases to change; dtypes: dtypes that have a kernel."""

    op: Op
    known: Sequence[Case]
    dtypes: Sequence[str]


def draw_case(source: CaseSource, seed: int, index: int, limits: CaseLimits) -> Case | None:
    """Case number `index` of a seed; None if no attempt satisfied the shape rule and the limits."""
    random = Random(f"{seed}/{source.op.name}/{index}")  # noqa: S311  not for secrets
    largest = limits.bytes
    for _ in range(ATTEMPTS):
        wanted = int(2 ** random.uniform(log2(MINIMUM_BYTES), log2(largest)))
        values = _proposal(source, random, wanted)
        values["dtype"] = _dtype(source.dtypes, random)
        case = valid_case(source.op, values, name=f"seed-{seed}-{index}", tags=(EXPLORED,))
        if case is not None and fits(case, limits):
            return _with_offset(source.op, case, random)
    return None


def valid_case(op: Op, values: Mapping[str, Any], **rest: Any) -> Case | None:
    """The case with these values; None if the op refuses them."""
    try:
        return build_case(op, values, **rest)
    except (CaseError, OverflowError, ZeroDivisionError):
        return None


def fits(case: Case, limits: CaseLimits) -> bool:
    """Whether a case computes something and is within the limits."""
    shapes = case.resolved
    if not any(spec.size for spec in shapes.outputs.values()):
        return False
    if tensor_bytes(shapes.inputs) + tensor_bytes(shapes.outputs) > limits.bytes:
        return False
    return _op_work(case) <= limits.flops


def values_of(case: Case) -> Values:
    """Fields of a case by dotted path, without parameters at their default."""
    default = param_values(type(case.params)())
    values: Values = {"dtype": case.dtype}
    values |= {f"shapes.{name}": tuple(shape) for name, shape in case.shapes.items()}
    given = param_values(case.params).items()
    values |= {f"params.{name}": value for name, value in given if value != default[name]}
    for name, spec in case.inputs.items():
        values |= {f"inputs.{name}.{key}": value for key, value in vars(spec).items() if value is not None}
    return values


def linked_lengths(values: Mapping[str, Any]) -> list[list[tuple[str, int]]]:
    """Axes of all inputs in groups of equal length, each axis as (path, axis); ops often require them to agree."""
    groups: dict[int, list[tuple[str, int]]] = {}
    for path, shape in values.items():
        if path.startswith("shapes."):
            for axis, length in enumerate(shape):
                groups.setdefault(length, []).append((path, axis))
    return [group for length, group in sorted(groups.items()) if length > 0]


def with_length(values: Mapping[str, Any], axes: Collection[tuple[str, int]], length: int) -> Values:
    """The values with another length of these axes."""
    changed = dict(values)
    for path, axis in axes:
        shape = changed[path]
        changed[path] = (*shape[:axis], length, *shape[axis + 1 :])
    return changed


def draw_length(random: Random, about: float) -> int:
    """A length near `about`: round (a power of two, or three times one), next to round, or arbitrary."""
    if about < 2:
        return random.choice((1, 1, 2, 3))
    kind = random.random()
    power = 1 << max(round(log2(about)), 0)
    if kind < 0.35:
        return power
    if kind < 0.45:
        return max(1, 3 * power // 4)
    if kind < 0.6:
        return max(1, power + random.choice((-1, 1)))
    if kind < 0.7:
        return max(1, 10 * round(about / 10))
    return max(1, int(about * random.uniform(0.7, 1.4)))


def draw_shape(random: Random, elements: int) -> Shape:
    """A shape of about this many elements; sometimes nearly all along one axis."""
    rank = random.choice((1, 2, 2, 3, 3, 4, 4, HIGHEST_RANK))
    weights = [random.random() ** random.choice((1, 1, 4)) + 0.01 for _ in range(rank)]
    bits = log2(max(elements, 1))
    shape = tuple(draw_length(random, 2 ** (bits * weight / sum(weights))) for weight in weights)
    if random.random() < 0.1:
        axis = random.randrange(rank)
        shape = (*shape[:axis], 1, *shape[axis + 1 :])
    return shape


def _proposal(source: CaseSource, random: Random, wanted: int) -> Values:
    op = source.op
    if op.propose is not None and random.random() < 0.5:
        shapes, params = op.propose(random, max(wanted // 4, 1))
        return {f"shapes.{name}": tuple(shape) for name, shape in shapes.items()} | {
            f"params.{name}": value for name, value in params.items()
        }
    if source.known and random.random() < 0.5:
        return _changed(source, random, wanted)
    return _fresh(source, random, wanted)


def _fresh(source: CaseSource, random: Random, wanted: int) -> Values:
    op, values = source.op, {}
    base = draw_shape(random, max(wanted // 8, 1))
    for item in op.inputs:
        if item.required or random.random() < 0.35:
            values[f"shapes.{item.name}"] = _related(base, random)
    for name, hint in record_hints(op.params).items():
        if f"shapes.{name}" not in values and random.random() < 0.6:
            values[f"params.{name}"] = _value(source, name, hint, random)
    return values


def _changed(source: CaseSource, random: Random, wanted: int) -> Values:
    """A known case with other lengths, scaled to about the wanted size, and some other parameters."""
    values = values_of(random.choice(source.known))
    for name, hint in record_hints(source.op.params).items():
        if f"shapes.{name}" not in values and random.random() < 0.2:
            values[f"params.{name}"] = _value(source, name, hint, random)
    for item in source.op.inputs:
        path = f"shapes.{item.name}"
        if not item.required and random.random() < 0.2:
            if path in values:
                values = {key: value for key, value in values.items() if item.name not in key.split(".")}
            else:
                shapes = [value for key, value in values.items() if key.startswith("shapes.")]
                if shapes:
                    values[path] = _related(random.choice(shapes), random)
                    values.pop(f"params.{item.name}", None)
    groups = linked_lengths(values)
    for group in random.sample(groups, min(len(groups), random.choice((1, 1, 2, 3)))):
        axes = group if random.random() < 0.7 else [random.choice(group)]
        old = values[axes[0][0]][axes[0][1]]
        values = with_length(values, axes, draw_length(random, old * 2 ** random.uniform(-3, 3)))
    return _scaled(values, random, wanted)


def _scaled(values: Values, random: Random, wanted: int) -> Values:
    """The lengths of one group of axes changed so that the largest input has about the wanted number of bytes."""
    groups = linked_lengths(values)
    if not groups or random.random() < 0.3:
        return values
    group = random.choice(groups)
    path, axis = group[0]
    size = max(prod(value) for key, value in values.items() if key.startswith("shapes."))
    factor = wanted / 12 / max(size, 1)
    return with_length(values, group, draw_length(random, max(1.0, values[path][axis] * factor)))


def _related(base: Shape, random: Random) -> Shape:
    """The same shape, one that broadcasts with it, its last axis, or one element."""
    kind = random.random()
    if kind < 0.5 or not base:
        return base
    if kind < 0.75:
        return tuple(1 if random.random() < 0.5 else length for length in base)
    if kind < 0.85:
        return base[random.randrange(len(base)) :]
    if kind < 0.92:
        return base[-1:]
    return (1,)


def _value(source: CaseSource, name: str, hint: Any, random: Random) -> Any:
    """A value by type: one of a known case, or one that is often a special case."""
    seen = [getattr(case.params, name) for case in source.known]
    if seen and random.random() < 0.4:
        return random.choice(seen)
    option = random.choice(members(hint))
    origin = get_origin(option)
    if origin is Literal:
        return random.choice(get_args(option))
    if origin is tuple:
        return tuple(random.choice(WHOLE) for _ in range(random.choice((1, 2, 2, 3))))
    return random.choice(SPECIAL.get(option, (getattr(source.op.params(), name),)))


def _dtype(dtypes: Sequence[str], random: Random) -> str:
    return random.choices(dtypes, [DTYPE_WEIGHTS.get(dtype, 1) for dtype in dtypes])[0]


def _with_offset(op: Op, case: Case, random: Random) -> Case:
    """The same case, sometimes with an input that begins one element past an aligned address."""
    if random.random() > 0.1:
        return case
    name = random.choice(sorted(case.resolved.inputs))
    values = values_of(case) | {f"inputs.{name}.layout": "offset"}
    return valid_case(op, values, name=case.name, tags=case.tags) or case


def _op_work(case: Case) -> float:
    from opgauge.ops import find_op

    flops = find_op(case.op).work(case.resolved, case.params).flops
    return ceil(flops) if isfinite(flops) else inf
