"""Cases as JSON (casejson), in both directions, for the workers' protocol, the store and the API.

Infinities and NaN are strings ("inf", "-inf", "nan"). Parameters at the op's default are omitted, so that an older or
newer `ops` can read the case. `id` is written for readers; reading computes it again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opgauge.harness.case.case import (
    IMPORTED,
    Case,
    GatePolicy,
    Imported,
    InputSpec,
    content_id,
    params_of,
    plain_value,
)
from opgauge.harness.case.hint import did_you_mean, read_value, record_hints, show
from opgauge.harness.case.rules import build_case, check_gate, known_field, known_op
from opgauge.harness.errors import CaseError
from opgauge.ops import Op, param_values

REST = {
    "name": str,
    "tags": tuple[str, ...],
    "note": str,
    "file": str,
    "line": int,
}
"""Fields outside the identity, with their types; `published` and `gate` are handled separately."""
DTYPE_LENGTH = 16
"""Longest dtype of an imported case, in characters."""
KEYS = ("id", "op", "dtype", "shapes", "params", "inputs", "published", "gate", *REST)
"""Keys of a case in JSON."""


def case_to_json(case: Case) -> dict[str, Any]:
    """`case` as a dict of plain JSON values."""
    if isinstance(case, StoredCase):
        return dict(case.data)
    default = param_values(params_of(case.op)())
    params = param_values(case.params)
    return {
        "id": case.id,
        "op": case.op,
        "name": case.name,
        "dtype": case.dtype,
        "shapes": {name: list(shape) for name, shape in case.shapes.items()},
        "params": {name: _plain(value) for name, value in params.items() if _differ(value, default[name])},
        "inputs": {name: _departures(spec, InputSpec()) for name, spec in case.inputs.items()},
        "tags": list(case.tags),
        "note": case.note,
        "published": dict(case.published),
        "gate": _departures(case.gate, GatePolicy()),
        "file": case.file,
        "line": case.line,
    }


def case_from_json(data: Mapping[str, Any]) -> Case:
    """The case that `case_to_json` wrote, read as strictly as a case file.

    Raises CaseError for an unknown key or op, a wrong type, or shapes that do not fit.
    """
    for key in data:
        if key not in KEYS:
            msg = f"unknown key {key!r} of a case{did_you_mean(key, KEYS)}"
            raise CaseError(msg, key)
    op_name = _read("op", data.get("op"), str)
    rest = {name: _read(name, data[name], hint) for name, hint in REST.items() if name in data}
    if "name" not in rest:
        msg = "name is missing"
        raise CaseError(msg, "name")
    gate = read_record("gate", data.get("gate", {}), GatePolicy)
    published = read_published(_mapping("published", data.get("published", {})))
    rest |= {"published": published, "gate": check_gate(gate)}
    if op_name == IMPORTED:
        return _read_imported(data, rest)
    op = known_op(op_name)
    values = {path: _read(path, value, known_field(op, path)) for path, value in _flatten(op, data)}
    return build_case(op, values, **rest)


class StoredCase(Case):
    """A stored case whose op this process does not know, or knows with other parameters.

    It can be displayed, exported and sent, but not run: `params` is a mapping, and `resolved` raises
    OpNotFoundError.
    """

    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The stored id."""
        return str(self.data["id"])

    def content(self) -> dict[str, Any]:
        """Content that the identity is computed from, as it was stored."""
        return {
            "op": self.op,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "dtype": self.dtype,
            "params": plain_value(self.params),
            "inputs": {name: plain_value(spec) for name, spec in self.data.get("inputs", {}).items() if spec},
        }

    @property
    def is_consistent(self) -> bool:
        """Whether the id is that of the content."""
        return content_id(self.content()) == self.id


def read_stored_case(data: Mapping[str, Any]) -> Case:
    """The case that `case_to_json` wrote, whether or not this process knows its op; raises CaseError."""
    try:
        return case_from_json(data)
    except CaseError:
        return stored_case(data)


def stored_case(data: Mapping[str, Any]) -> StoredCase:
    """A case that this process cannot build, from its JSON.

    Raises CaseError for JSON that `case_to_json` never writes.
    """
    for key in data:
        if key not in KEYS:
            msg = f"unknown key {key!r} of a case{did_you_mean(key, KEYS)}"
            raise CaseError(msg, key)
    texts = {key: _read(key, data.get(key), str) for key in ("id", "op", "name", "dtype")}
    if not re.fullmatch("[0-9a-f]{16}", texts["id"]):
        msg = f"id should be 16 hexadecimal digits, not {show(texts['id'])}"
        raise CaseError(msg, "id")
    shapes = {
        name: _read(f"shapes.{name}", shape, tuple[int, ...])
        for name, shape in _mapping("shapes", data.get("shapes", {})).items()
    }
    inputs = {
        name: read_record(f"inputs.{name}", spec, InputSpec)
        for name, spec in _mapping("inputs", data.get("inputs", {})).items()
    }
    rest = {name: _read(name, data[name], hint) for name, hint in REST.items() if name in data and name != "name"}
    made = StoredCase(
        op=texts["op"],
        name=texts["name"],
        shapes=shapes,
        dtype=texts["dtype"],
        params=dict(_mapping("params", data.get("params", {}))),
        inputs=inputs,
        published=read_published(_mapping("published", data.get("published", {}))),
        gate=check_gate(read_record("gate", data.get("gate", {}), GatePolicy)),
        **rest,
    )
    object.__setattr__(made, "data", dict(data))
    return made


def _read_imported(data: Mapping[str, Any], rest: Mapping[str, Any]) -> Case:
    """A case of another tool, which has no shapes and no inputs."""
    for key in ("shapes", "inputs"):
        if data.get(key):
            msg = f"{key} of an imported case should be empty"
            raise CaseError(msg, key)
    given = dict(_mapping("params", data.get("params", {})))
    axes = _mapping("params.axes", given.pop("axes", {}))
    texts = {f"params.axes.{key}": value for key, value in axes.items()} | {"dtype": data.get("dtype")}
    for path, value in texts.items():
        _read(path, value, str)
    if len(data["dtype"]) > DTYPE_LENGTH:
        msg = f"dtype {data['dtype']!r} is longer than {DTYPE_LENGTH} characters"
        raise CaseError(msg, "dtype")
    known = {name: hint for name, hint in record_hints(Imported).items() if name != "axes"}
    for key, value in given.items():
        if key not in known:
            msg = f"unknown key {key!r} of params{did_you_mean(key, [*known, 'axes'])}"
            raise CaseError(msg, f"params.{key}")
        _read(f"params.{key}", value, known[key])
    return Case(op=IMPORTED, shapes={}, dtype=data["dtype"], params=Imported(**given, axes=dict(axes)), **rest)


def read_record(path: str, data: Any, record: type) -> Any:
    """A dataclass from a mapping of its fields; raises CaseError."""
    hints = record_hints(record)
    found = {}
    for key, value in _mapping(path, data).items():
        if key not in hints:
            msg = f"unknown key {key!r} of {path}{did_you_mean(key, hints)}"
            raise CaseError(msg, f"{path}.{key}")
        found[key] = _read(f"{path}.{key}", value, hints[key])
    return record(**found)


def read_published(data: Mapping[str, Any]) -> dict[str, str | float]:
    """Published figures: finite numbers and texts by name; raises CaseError."""
    for name, value in data.items():
        right = isinstance(value, str | int | float) and not isinstance(value, bool)
        if not right or (isinstance(value, float) and not math.isfinite(value)):
            msg = f"published.{name} should be a number or text, not {show(value)}"
            raise CaseError(msg, f"published.{name}")
    return dict(data)


def _flatten(op: Op, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "dtype" in data:
        yield "dtype", data["dtype"]
    for section in ("shapes", "params"):
        for name, value in _mapping(section, data.get(section, {})).items():
            yield f"{section}.{name}", value
    for name, spec in _mapping("inputs", data.get("inputs", {})).items():
        known_field(op, f"inputs.{name}.kind")
        for key, value in _mapping(f"inputs.{name}", spec).items():
            yield f"inputs.{name}.{key}", value


def _mapping(path: str, data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        msg = f"{path} should be a mapping, not {show(data)}"
        raise CaseError(msg, path)
    return data


def _read(path: str, value: Any, hint: Any) -> Any:
    try:
        return read_value(value, hint)
    except ValueError as error:
        msg = f"{path} {error}"
        raise CaseError(msg, path) from error


def _departures(record: Any, default: Any) -> dict[str, Any]:
    standard = vars(default)
    return {key: _plain(value) for key, value in vars(record).items() if _differ(value, standard[key])}


def _differ(value: Any, default: Any) -> bool:
    """Whether two values differ, also in type or in the sign of a zero."""
    return repr(value) != repr(default)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
