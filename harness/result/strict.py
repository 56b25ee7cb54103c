"""Strict reading of records: JSON from other machines must have exactly the fields and types of a record.

`record_json.from_json` trusts JSON that our own workers and database wrote; JSON from other machines goes through
`read_record` first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from opgauge.harness.case.case import Case
from opgauge.harness.case.hint import did_you_mean, show
from opgauge.harness.errors import HarnessError
from opgauge.harness.result.record_json import from_json

Record = TypeVar("Record")
Checker = Callable[[Any, str], None]
LARGEST = 2**63 - 1
"""Largest whole number that databases store."""
TEXT_LIMIT = 100_000
"""Most characters of a text."""
DEPTH_LIMIT = 20
"""Deepest nesting of plain JSON."""
NOT_FINITE = frozenset({"inf", "-inf", "nan"})
"""Texts that `to_json` writes for numbers that JSON lacks."""


class SubmissionError(HarnessError, ValueError):
    """JSON of the wrong form; the message names the field."""

    exit_code = 2

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")


def read_record(kind: type[Record], data: Any, path: str) -> Record:
    """The record of type `kind` that `to_json` wrote; raises SubmissionError, or CaseError for a wrong case."""
    check_record(kind, data, path)
    return from_json(kind, data)


def check_record(kind: type[Any], data: Any, path: str) -> None:
    """Check that `data` has the fields of `kind`, each of its type; raises SubmissionError."""
    _checker(cast("Any", kind))(data, path)


def check_plain(value: Any, path: str, depth: int = DEPTH_LIMIT) -> None:
    """Check that `value` is JSON with finite numbers, not nested too deeply; raises SubmissionError."""
    if depth == 0:
        raise SubmissionError(path, "is nested too deeply")
    if isinstance(value, Mapping):
        for item in value.values():
            check_plain(item, path, depth - 1)
    elif isinstance(value, list):
        for item in value:
            check_plain(item, path, depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SubmissionError(path, "has a number that is not finite")
    elif type(value) is int and abs(value) > LARGEST:
        raise SubmissionError(path, "has a number over 2^63")


def check_texts(data: Any) -> None:
    """Check that databases can store all text: no NUL, no half of a surrogate pair; raises SubmissionError."""
    for text in _texts(data):
        if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise SubmissionError("text", f"{show(text)} has a character that databases cannot store")


def _texts(data: Any) -> Iterator[str]:
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


@cache
def _checker(hint: Any) -> Checker:
    if isinstance(hint, UnionType):
        return _optional(_checker(get_args(hint)[0]))
    origin = get_origin(hint)
    if origin is tuple:
        return _tuple(get_args(hint)[0])
    if origin is Mapping:
        return _mapping(get_args(hint)[1])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if is_dataclass(hint) and isinstance(hint, type) and hint is not Case:
        return _dataclass(hint)
    return _SCALARS[hint]


def _optional(inner: Checker) -> Checker:
    def check(value: Any, path: str) -> None:
        if value is not None:
            inner(value, path)

    return check


def _tuple(item: Any) -> Checker:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        if item is float and set(map(type, value)) <= {float, int}:
            return
        for one in value:
            _checker(item)(one, path)

    return check


def _mapping(item: Any) -> Checker:
    inner = _checker(item)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(path, "a mapping", value)
        for key, one in value.items():
            inner(one, f"{path}.{key[:60]}")

    return check


def _enum(kind: type[Enum]) -> Checker:
    known = [member.value for member in kind]

    def check(value: Any, path: str) -> None:
        if value not in known:
            raise SubmissionError(path, f"{show(value)} is none of {', '.join(known)}")

    return check


def _dataclass(kind: type[Any]) -> Checker:
    hints = get_type_hints(kind)
    inner = {item.name: _checker(hints[item.name]) for item in fields(kind)}
    # plain types are decided here, since half of the time is spent in calls
    plain = {item.name: _PLAIN.get(hints[item.name], frozenset()) for item in fields(kind)}
    needed = [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(path, "a mapping", value)
        for name in needed:
            if name not in value:
                raise SubmissionError(path, f"{name} is missing")
        for name, one in value.items():
            if name not in inner:
                raise SubmissionError(path, f"unknown key {name[:60]!r}{did_you_mean(name[:60], inner)}")
            if type(one) not in plain[name]:
                inner[name](one, f"{path}.{name}")

    return check


def _case(value: Any, path: str) -> None:
    """Accept a mapping; the case itself is checked when it is parsed."""
    if not isinstance(value, dict):
        raise _wrong(path, "a mapping", value)


def _text(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise _wrong(path, "text", value)
    if len(value) > TEXT_LIMIT:
        raise SubmissionError(path, f"has {len(value)} characters; at most {TEXT_LIMIT} are taken")


def _whole(value: Any, path: str) -> None:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise _wrong(path, "a whole number from 0", value)


def _number(value: Any, path: str) -> None:
    named = isinstance(value, str) and value in NOT_FINITE
    if not named and type(value) not in {int, float}:
        raise _wrong(path, "a number", value)
    if type(value) is int and abs(value) > LARGEST:
        raise _wrong(path, "a number below 2^63", value)


def _truth(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false", value)


def _wrong(path: str, wanted: str, value: Any) -> SubmissionError:
    return SubmissionError(path, f"should be {wanted}, not {show(value)}")


_PLAIN: dict[Any, frozenset[type]] = {
    bool: frozenset({bool}),
    float: frozenset({float}),
    float | None: frozenset({float, NoneType}),
    int | None: frozenset({NoneType}),
    str | None: frozenset({NoneType}),
}
_SCALARS: dict[Any, Checker] = {
    Case: _case,
    Any: check_plain,
    bool: _truth,
    float: _number,
    int: _whole,
    str: _text,
}
