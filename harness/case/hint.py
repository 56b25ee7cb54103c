"""Conversion of plain YAML and JSON values to the type of a field.

Types are those that parameters may have: bool, int, float, str, None, Literal, tuples of them, and unions. Nothing is
guessed: a bool is no number, a fraction no whole number, and text no number, except the names of numbers that JSON
lacks: "inf", "-inf" and "nan".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

NON_FINITE = {
    "inf": math.inf,
    "+inf": math.inf,
    ".inf": math.inf,
    "-inf": -math.inf,
    "-.inf": -math.inf,
    "nan": math.nan,
    ".nan": math.nan,
}
"""Texts that stand for a number."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
_NOTHING = object()


def read_value(value: Any, hint: Any) -> Any:
    """`value` converted to `hint`: 2 to 2.0 for a float, a list to a tuple, "inf" to infinity.

    Raises ValueError with the expected type, without the name of the field.
    """
    options = members(hint)
    for convert in (_named_number, _exact, _widened):
        for option in options:
            found = convert(value, option)
            if found is not _NOTHING:
                return found
    msg = f"should be {describe(hint)}, not {show(value)}{_suggestion(value, options)}"
    raise ValueError(msg)


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(member for option in get_args(hint) for member in members(option))
    return (hint,)


def takes_scalars(hint: Any) -> bool:
    """Whether a value of this type may be anything but a tuple."""
    return any(get_origin(option) is not tuple for option in members(hint))


def _named_number(value: Any, option: Any) -> Any:
    is_name = option is float and isinstance(value, str)
    return NON_FINITE.get(value.lower(), _NOTHING) if is_name else _NOTHING


def _exact(value: Any, option: Any) -> Any:
    if get_origin(option) is Literal:
        same = (one for one in get_args(option) if type(one) is type(value) and one == value)
        return next(same, _NOTHING)
    if get_origin(option) is tuple and isinstance(value, list | tuple):
        return _read_tuple(value, get_args(option))
    return value if type(value) is option else _NOTHING


def _widened(value: Any, option: Any) -> Any:
    return float(value) if option is float and type(value) is int else _NOTHING


def _read_tuple(values: Iterable[Any], hints: tuple[Any, ...]) -> Any:
    items = tuple(values)
    wanted = hints[:1] * len(items) if hints[-1:] == (...,) else hints
    if len(items) != len(wanted):
        return _NOTHING
    try:
        return tuple(read_value(item, hint) for item, hint in zip(items, wanted, strict=True))
    except ValueError:
        return _NOTHING


def describe(hint: Any) -> str:
    """The type in words: "a number or 'fro'"."""
    words = [word for option in members(hint) for word in _describe_one(option)]
    return " or ".join((", ".join(words[:-1]), words[-1]) if words[1:] else words)


def _describe_one(option: Any) -> list[str]:
    if get_origin(option) is Literal:
        return [repr(one) for one in get_args(option)]
    if get_origin(option) is tuple:
        *items, last = get_args(option)
        count = "" if last is ... else f"{len(items) + 1} "
        return [f"a list of {count}{_WORDS[items[0] if items else last].removeprefix('a ')}s"]
    return [_WORDS[option]]


def show(value: Any) -> str:
    """A value as the user wrote it, truncated."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest name, or all known names."""
    names = [str(one) for one in known]
    near = get_close_matches(str(name), names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}" if names else "; there are none"


def _suggestion(value: Any, options: tuple[Any, ...]) -> str:
    if not isinstance(value, str):
        return ""
    literals = (get_args(option) for option in options if get_origin(option) is Literal)
    names = [one for group in literals for one in group if isinstance(one, str)]
    near = get_close_matches(value, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


@cache
def record_hints(record: type) -> dict[str, Any]:
    """The resolved type hints of a dataclass's fields."""
    hints = get_type_hints(record)
    return {item.name: hints[item.name] for item in fields(record)}


@cache
def record_docs(record: type) -> dict[str, str]:
    """Description of each field of a dataclass, from the `name: text` parts of its docstring, if somebody wrote one."""
    names = list(record_hints(record))
    text = " ".join((record.__doc__ or "").split())
    if text.startswith(f"{record.__name__}("):  # the signature, by which dataclasses replace a missing docstring
        return {}
    start = re.compile(rf"(?:^|[ (])((?:(?:{'|'.join(names)})[,/ ]*)+): ") if names else None
    pieces = start.split(text) if start else [text]
    found: dict[str, str] = {}
    for heads, body in zip(pieces[1::2], pieces[2::2], strict=True):
        for name in re.split(r"[,/ ]+", heads):
            if name in names:
                found[name] = body.strip()
    return found
