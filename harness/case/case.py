"""A case: an op at given shapes, dtype and parameters.

Its identity is a hash of that content, never its name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from opgauge.ops import Shapes, find_op, param_values

IMPORTED = "imported"
"""The op of cases that another tool measured: it has no kernels and no shape rule here."""
EXPLORED = "explore"
"""Tag of random cases of an exploration."""

Kind = Literal["normal", "uniform", "integers", "constant"]
Layout = Literal["contiguous", "offset", "transposed"]
Statistic = Literal["median", "min", "p10", "p25", "p75", "p90"]


@dataclass(frozen=True)
class GatePolicy:
    """Limits that a case sets for the gate; None defers to the policy file.

    threshold: smallest slowdown that counts, as a ratio (0.03 is 3 %). min_speedup: least ratio of baseline time to
    optimized time. min_ceiling: least share of the ceiling, 0 to 1. max_launches: most kernel launches. budget_s:
    seconds per side. same_within: largest change that still counts as the same, as a ratio; at least the threshold.
    statistic: figure of a process's samples that is compared; None: the median.
    """

    threshold: float | None = None
    min_speedup: float | None = None
    min_ceiling: float | None = None
    max_launches: int | None = None
    budget_s: float | None = None
    same_within: float | None = None
    statistic: Statistic | None = None


@dataclass(frozen=True)
class InputSpec:
    """Values and layout of one input where the case overrides the op's own choice.

    kind: normal, uniform, integers or constant; None keeps the op's. low, high: bounds of uniform and integers.
    mean, std: parameters of normal. value: the constant. layout: contiguous, offset (starts one element past an
    aligned address) or transposed (axes reversed in memory; only for kernels that take strided inputs).
    """

    kind: Kind | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    std: float | None = None
    value: float | None = None
    layout: Layout = "contiguous"


@dataclass(frozen=True)
class Imported:
    """Description of a case that another tool measured: the parameters of the op `imported`.

    tool: `nvbench`, `pytest-benchmark` or `google-benchmark`. benchmark: its name in that tool. axes: parameters as
    the tool wrote them, by name.
    """

    tool: str = ""
    benchmark: str = ""
    axes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One point to measure.

    shapes: shapes of the given inputs; the op's shape rule derives the others. params: the op's own parameter
    dataclass, validated. published: figures of a design document, by name (`device`, `paddle_ms`, …). file, line:
    position of the case in its file.
    """

    op: str
    name: str
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    params: Any
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    note: str = ""
    published: Mapping[str, str | float] = field(default_factory=dict)
    gate: GatePolicy = GatePolicy()
    file: str = ""
    line: int = 0

    @cached_property
    def id(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical content.

        Equal numbers give equal ids (`2` and `2.0`), infinities included. Name, tags, note, published figures
        and gate policy are not hashed. Parameters at the op's default are not hashed either, so that a new
        parameter does not change existing ids.
        """
        return content_id(self.content())

    def content(self) -> dict[str, Any]:
        """Content that is hashed for the identity, as plain JSON: infinities as strings, whole floats as integers."""
        default = param_values(params_of(self.op)())
        standard = vars(InputSpec())
        return {
            "op": self.op,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "dtype": self.dtype,
            "params": {
                name: plain_value(value)
                for name, value in param_values(self.params).items()
                if plain_value(value) != plain_value(default[name])
            },
            "inputs": {
                name: {key: plain_value(value) for key, value in vars(spec).items() if value != standard[key]}
                for name, spec in self.inputs.items()
                if spec != InputSpec()
            },
        }

    @cached_property
    def resolved(self) -> Shapes:
        """Every input and output with shape and dtype, by the op's shape rule."""
        return find_op(self.op).infer(self.shapes, self.dtype, self.params)


def content_id(content: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of a case's canonical content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def params_of(op: str) -> type[Any]:
    """The parameter dataclass of an op; raises OpError for an unknown op."""
    return Imported if op == IMPORTED else find_op(op).params


def plain_value(value: Any) -> Any:
    """A value in JSON types; equal values give equal JSON."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, float):
        if math.isinf(value) or math.isnan(value):
            return str(value)
        return int(value) if value.is_integer() else value
    return value
