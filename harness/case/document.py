"""YAML documents as trees in which every value has its position.

Scalars follow YAML 1.2's core schema: `on` and `12:30` are texts, `1e-3` is a number. Tags (`!!python/object`) are
refused. Size, depth and the number of nodes after alias expansion are limited, so that no file can exhaust memory or
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from opgauge.harness.case.hint import show
from opgauge.harness.errors import CaseFileError, Mistake, Position

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DEPTH = 24
MAX_DIGITS = 18
"""Limits of a document: bytes, nodes after alias expansion, nesting depth, digits of an integer (18 fit an int64)."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if libyaml is installed
_BREAK = re.compile(r"\r\n?|\n")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True, eq=False)
class YamlNode:
    """A value of a document: a scalar, a list of nodes, or nodes by key.

    keys: position of each key of a mapping. size: number of nodes in it, aliases expanded.
    """

    value: Any
    place: Position
    keys: dict[str, Position] = field(default_factory=dict)
    size: int = 1

    @property
    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, list):
            return [item.plain for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain for key, item in self.value.items()}
        return self.value


def read_documents(path: Path, mistakes: list[Mistake]) -> list[YamlNode]:
    """The documents of a YAML file; none if it is empty.

    Duplicate keys are appended to `mistakes`; the first value counts. Raises CaseFileError if the file cannot be
    read as YAML or is too large.
    """
    composer = _Composer(str(path), _read_text(path), mistakes)
    try:
        return list(composer.documents())
    except yaml.YAMLError as error:
        raise composer.syntax_mistake(error) from error


def _fatal(place: Position, text: str) -> CaseFileError:
    return CaseFileError([Mistake(place, text)])


def _read_text(path: Path) -> str:
    whole = Position(str(path))
    try:
        if not path.is_file():
            raise _fatal(whole, "not a regular file" if path.exists() else "no such file")
        with path.open("rb") as stream:
            size = path.stat().st_size
            data = stream.read(MAX_BYTES + 1) if size <= MAX_BYTES else b""
    except OSError as error:
        raise _fatal(whole, f"cannot be read: {error.strerror}") from error
    size = max(size, len(data))
    if size > MAX_BYTES:
        raise _fatal(whole, f"the file has {size:,} bytes; at most {MAX_BYTES:,} are allowed")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        raise _fatal(_place_after(str(path), before), "not UTF-8; save the file as UTF-8") from error


def _place_after(file: str, before: str) -> Position:
    lines = _BREAK.split(before)
    return Position(file, len(lines), len(lines[-1]) + 1)


class _Composer:
    """Turns the parser's events into nodes, counting depth and expanded nodes."""

    def __init__(self, file: str, text: str, mistakes: list[Mistake]) -> None:
        self.file = file
        self.text = text
        self.mistakes = mistakes
        self.anchors: dict[str, YamlNode] = {}
        self.count = 0
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))

    def documents(self) -> Iterator[YamlNode]:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors = {}
                yield self._node(next(self.events), 1)

    def syntax_mistake(self, error: yaml.YAMLError) -> CaseFileError:
        """The parser's error in one line, with its position."""
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            place = Position(self.file, mark.line + 1, mark.column + 1)
            parts = (getattr(error, "context", None), getattr(error, "problem", None))
            text = ": ".join(part.strip() for part in parts if part)
        else:
            place = _place_after(self.file, self.text[: getattr(error, "position", 0)])
            text = getattr(error, "reason", "") or str(error).partition("\n")[0]
        return _fatal(place, f"YAML syntax: {text}")

    def _place(self, event: Any) -> Position:
        return Position(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> YamlNode:
        place = self._place(event)
        if depth > MAX_DEPTH:
            raise _fatal(place, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            return self._counted(self._anchored(event, place), place)
        if event.tag is not None:
            raise _fatal(place, f"the YAML tag {show(event.tag)} is not allowed")
        if isinstance(event, yaml.ScalarEvent):
            node = YamlNode(self._scalar(event, place), place)
            self._counted(node, place)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(place, depth)
        else:
            node = self._mapping(place, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _anchored(self, event: Any, place: Position) -> YamlNode:
        node = self.anchors.get(event.anchor)
        if node is None:
            raise _fatal(place, f"the alias *{event.anchor} has no anchor before it")
        return node

    def _counted(self, node: YamlNode, place: Position) -> YamlNode:
        self.count += node.size
        if self.count > MAX_NODES:
            raise _fatal(place, f"more than {MAX_NODES:,} values, aliases written out")
        return node

    def _sequence(self, place: Position, depth: int) -> YamlNode:
        self.count += 1
        items = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return YamlNode(items, place, size=1 + sum(item.size for item in items))

    def _mapping(self, place: Position, depth: int) -> YamlNode:
        self.count += 1
        found: dict[str, YamlNode] = {}
        keys: dict[str, Position] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            value = self._node(next(self.events), depth + 1)
            name = key.value
            if not isinstance(name, str):
                self.mistakes.append(Mistake(key.place, f"a key should be text, not {show(key.plain)}"))
            elif name in found:
                text = f"duplicate key {name!r}; it is also at {keys[name]}"
                self.mistakes.append(Mistake(key.place, text))
            else:
                found[name], keys[name] = value, key.place
        return YamlNode(found, place, keys, size=1 + sum(item.size + 1 for item in found.values()))

    def _scalar(self, event: Any, place: Position) -> Any:
        text = event.value
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text) and len(text) <= MAX_DIGITS:
            return int(text)
        if _BASED.fullmatch(text) and len(text) <= MAX_DIGITS:
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return self._float(text, place)
        return text

    def _float(self, text: str, place: Position) -> float:
        number = float(text)
        if abs(number) == float("inf"):
            sign = "-" if number < 0 else ""
            self.mistakes.append(Mistake(place, f"{show(text)} is too large; write {sign}.inf for infinity"))
        return number
