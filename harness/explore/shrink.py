"""Shrinking: simpler cases next to a failing one, to find the simplest that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log2, prod
from typing import Any

from opgauge.harness.case.case import Case
from opgauge.harness.explore.draw import linked_lengths, valid_case, values_of, with_length
from opgauge.ops import find_op

Shows = Callable[[Case], bool]


def shrink(case: Case, shows: Shows, most: int) -> Case:
    """The simplest failing case found with at most `most` calls of `shows`."""
    asked = {case.id}
    while most > 0:
        for candidate in simpler_cases(case):
            if candidate.id in asked:
                continue
            asked.add(candidate.id)
            most -= 1
            if shows(candidate):
                case = candidate
                break
            if most <= 0:
                return case
        else:
            return case
    return case


def simpler_cases(case: Case) -> Iterator[Case]:
    """Valid cases that are simpler by one step, the largest steps first."""
    op, values = find_op(case.op), values_of(case)
    for changed in _steps(values):
        found = valid_case(op, changed, name=case.name, tags=case.tags)
        if found is None or not any(spec.size for spec in found.resolved.outputs.values()):
            continue
        if complexity(found) < complexity(case):
            yield found


def complexity(case: Case) -> tuple[float, ...]:
    """Sort key: number of deviations from the defaults, then size, then number of lengths that are no power of two."""
    values = values_of(case)
    lengths = [length for path, shape in values.items() if path.startswith("shapes.") for length in shape]
    odd = sum(length & (length - 1) != 0 for length in lengths)
    size = sum(prod(shape) for path, shape in values.items() if path.startswith("shapes."))
    long = sum(length > 1 for length in lengths)
    return len(values) - (case.dtype == "float32"), long, round(log2(size + 1), 1), odd, len(lengths)


def _steps(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in values:
        section = path.partition(".")[0]
        if section in {"params", "inputs", "shapes"}:
            yield {key: value for key, value in values.items() if key != path}
    if values["dtype"] != "float32":
        yield {**values, "dtype": "float32"}
    yield from _without_axis(values)
    groups = sorted(linked_lengths(values), key=lambda group: -values[group[0][0]][group[0][1]])
    for target in (_to_one, _to_quarter, _to_half, _to_round):
        for group in groups:
            length = values[group[0][0]][group[0][1]]
            if target(length) < length:
                yield with_length(values, group, target(length))
                if len(group) > 1:
                    for axis in group:
                        yield with_length(values, [axis], target(length))


def _without_axis(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The values without an axis that has length 1 in every input of the highest rank."""
    shapes = {path: shape for path, shape in values.items() if path.startswith("shapes.")}
    rank = max(map(len, shapes.values()), default=0)
    whole = {path: shape for path, shape in shapes.items() if len(shape) == rank}
    for axis in range(rank):
        if {shape[axis] for shape in whole.values()} == {1}:
            yield values | {path: (*shape[:axis], *shape[axis + 1 :]) for path, shape in whole.items()}


def _to_one(length: int) -> int:
    del length
    return 1


def _to_quarter(length: int) -> int:
    return _to_round(max(length // 4, 1))


def _to_half(length: int) -> int:
    return _to_round(max(length // 2, 1))


def _to_round(length: int) -> int:
    """The largest power of two at or below a length."""
    return 1 << (length.bit_length() - 1)
