"""Records as plain JSON and back, without loss: infinities and NaN are written as strings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from opgauge.harness.case.case import Case
from opgauge.harness.case.casejson import case_from_json, case_to_json

Record = TypeVar("Record")
_PLAIN = frozenset({NoneType, bool, int, str})
_TEXTS, _LISTS = (str, int), (tuple, list)


def to_json(record: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """A record as plain JSON; numbers that are not finite become "inf", "-inf" or "nan"."""
    found = {}
    for name in _names(cast("Any", type(record))):
        if name not in without:
            value = getattr(record, name)
            found[name] = value if type(value) in _PLAIN else _encode(value)
    return found


def from_json(kind: type[Record], data: Mapping[str, Any], **known: Any) -> Record:
    """The record of type `kind` that `to_json` wrote; raises CaseError, KeyError or ValueError for other JSON.

    known: fields that are already known and not in `data`.
    """
    read = _readers(cast("Any", kind))
    return kind(**known, **{name: read[name](value) for name, value in data.items()})


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _encode(value: Any) -> Any:
    if type(value) in _PLAIN or isinstance(value, _TEXTS):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, _LISTS):
        plain = set(map(type, value)) == {float} and all(map(math.isfinite, value))
        return list(value) if plain else [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, Case):
        return case_to_json(value)
    return to_json(value) if is_dataclass(value) else value


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Reader of each field of a record, cached, since thousands of results are read at a time."""
    return {name: _reader(hint) for name, hint in get_type_hints(kind).items()}


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    origin = get_origin(hint)
    if isinstance(hint, UnionType):
        inner = _reader(get_args(hint)[0])
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(get_args(hint)[0])
        return lambda value: tuple(map(item, value))
    if origin is Mapping:
        one = _reader(get_args(hint)[1])
        return lambda value: {key: one(item) for key, item in value.items()}
    if hint is Case:
        return case_from_json
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: from_json(hint, value)
    return _as_it_is if hint in {Any, bool, int, str} else cast("Callable[[Any], Any]", hint)


def _as_it_is(value: Any) -> Any:
    return value
