"""The JSON Schema of case files, generated from the ops' parameters, for completion and checks in editors."""

from __future__ import annotations

import json
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from opgauge.harness.case.case import GatePolicy, InputSpec
from opgauge.harness.case.hint import NON_FINITE, members, record_docs, record_hints, takes_scalars
from opgauge.harness.case.rules import field_hints
from opgauge.ops import Op, all_ops

Schema = dict[str, Any]

DOCS = {
    "op": "The operator that all cases of this document measure.",
    "defaults": "Fields common to the cases. A case overrides field by field; tags add up.",
    "cases": "The cases. A list of values where one is expected is a sweep; sweeps multiply.",
    "name": "Name of the case. It may change: the identity is the content.",
    "tags": "Words to select cases by, such as smoke, seed, gate, full.",
    "dtype": "Dtype of the inputs, or a list of them.",
    "shapes": "Shapes of the inputs by name; omit those that the op's shape rule derives.",
    "params": "Parameters of the op; omitted ones have the op's default.",
    "inputs": "Values of inputs that override the op's own choice.",
    "gate": "Limits of the case for the gate.",
    "note": "One sentence for the reader.",
    "published": "Figures of a design document by name; only if the case is a single point.",
    "zip": "Fields that vary together, by dotted name, with a list of values each.",
}
"""Descriptions of keys that the ops do not define."""
_TYPES: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"$ref": "#/$defs/number"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
}
_NUMBER = {
    "description": "A number; infinities are .inf and -.inf, or the texts inf and -inf.",
    "anyOf": [{"type": "number"}, {"enum": sorted(NON_FINITE)}],
}
_SHAPE = {"$ref": "#/$defs/shape"}
_LENGTHS = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def case_schema() -> Schema:
    """The schema (draft 2020-12) of one document of a case file, for the registered ops."""
    definitions: Schema = {
        "number": _NUMBER,
        "shape": _LENGTHS,
        "shapes": {"anyOf": [_SHAPE, _list(_SHAPE)]},
        "gate": _record(GatePolicy),
        "distribution": _record(InputSpec, swept=True),
    }
    for op in all_ops():
        definitions[f"{op.name}.defaults"] = _object(_shared(op))
        definitions[f"{op.name}.case"] = {**_object(_case(op)), "required": ["name"]}
    properties = {
        "op": {"description": DOCS["op"], "enum": [op.name for op in all_ops()]},
        "defaults": {"description": DOCS["defaults"], "type": "object"},
        "cases": {"description": DOCS["cases"], "type": "array", "minItems": 1},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "opgauge case file",
        "description": "Cases to measure: one operator a document. Written by `opgauge schema`.",
        **_object(properties),
        "required": ["op", "cases"],
        "allOf": [_for_op(op) for op in all_ops()],
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as JSON text."""
    return json.dumps(case_schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _for_op(op: Op) -> Schema:
    then = {
        "defaults": {"$ref": f"#/$defs/{op.name}.defaults"},
        "cases": {"items": {"$ref": f"#/$defs/{op.name}.case"}},
    }
    when = {"properties": {"op": {"const": op.name}}, "required": ["op"]}
    return {"if": when, "then": {"properties": then}}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _shared(op: Op) -> Schema:
    hints = field_hints(op.name)
    docs = record_docs(op.params)
    params = {key: _swept(hints[f"params.{key}"], docs.get(key, "")) for key in record_hints(op.params)}
    shapes = {item.name: {**_description(item.doc), "$ref": "#/$defs/shapes"} for item in op.inputs}
    inputs = {item.name: {"$ref": "#/$defs/distribution"} for item in op.inputs}
    return {
        "tags": {"description": DOCS["tags"], **_list({"type": "string"}, least=0)},
        "dtype": _swept(hints["dtype"], DOCS["dtype"]),
        "shapes": {"description": DOCS["shapes"], **_object(shapes)},
        "params": {"description": f"{DOCS['params']} {op.summary}.", **_object(params)},
        "inputs": {"description": DOCS["inputs"], **_object(inputs)},
        "gate": {"description": DOCS["gate"], "$ref": "#/$defs/gate"},
        "note": {"description": DOCS["note"], "type": "string"},
    }


def _case(op: Op) -> Schema:
    columns = {
        path: _list(_SHAPE if path.startswith("shapes.") else _value(hint))
        for path, hint in field_hints(op.name).items()
    }
    figures = {"type": "object", "additionalProperties": {"type": ["number", "string"]}}
    return {
        "name": {"description": DOCS["name"], "type": "string", "minLength": 1},
        **_shared(op),
        "published": {"description": DOCS["published"], **figures},
        "zip": {"description": DOCS["zip"], **_object(columns)},
    }


def _record(record: type, *, swept: bool = False) -> Schema:
    docs = record_docs(record)
    fields = {}
    for name, hint in record_hints(record).items():
        doc = docs.get(name, "")
        fields[name] = _swept(hint, doc) if swept else {**_value(hint), **_description(doc)}
    return _object(fields)


def _swept(hint: Any, doc: str) -> Schema:
    """One value of a type, or several in a list."""
    one = _value(hint)
    several = _list(one)
    if not takes_scalars(hint):
        return _any([one, several], doc)
    return _any([*one.get("anyOf", [one]), several], doc)


def _any(options: list[Schema], doc: str) -> Schema:
    return {**_description(doc), "anyOf": options}


def _description(doc: str) -> Schema:
    return {"description": doc} if doc else {}


def _list(items: Schema, least: int = 1) -> Schema:
    return {"type": "array", "items": items, **({"minItems": least} if least else {})}


def _value(hint: Any) -> Schema:
    options = [_option(option) for option in members(hint)]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _option(option: Any) -> Schema:
    if get_origin(option) is Literal:
        return {"enum": list(get_args(option))}
    if get_origin(option) is tuple:
        items = get_args(option)
        if items[-1] is ...:
            return {"type": "array", "items": _value(items[0])}
        exact = [_value(item) for item in items]
        return {"type": "array", "prefixItems": exact, "items": False, "minItems": len(items)}
    return _TYPES[option]
