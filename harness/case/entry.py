"""One item of a case file's `cases`: defaults merged in, sweeps expanded, points checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from opgauge.harness.case.case import Case, GatePolicy
from opgauge.harness.case.casejson import read_published
from opgauge.harness.case.document import YamlNode
from opgauge.harness.case.hint import read_value, record_hints, show, takes_scalars
from opgauge.harness.case.reading import collecting, entries_of, known_entries, located, read_node, wrong
from opgauge.harness.case.rules import SECTIONS, build_case, check_gate, known_field
from opgauge.harness.case.sweep import Point, SweepAxis, SweepValue, count_points, expand, point_name, varying
from opgauge.harness.errors import CaseError, Mistake, Position
from opgauge.ops import Op

MAX_CASES = 10_000
"""Most cases of one file."""
SHARED_KEYS = ("tags", "dtype", *SECTIONS, "gate", "note")
CASE_KEYS = ("name", *SHARED_KEYS, "published", "zip")
"""Keys of defaults and of a case."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Written(NamedTuple):
    """A case and its position in the file."""

    case: Case
    place: Position


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys that `defaults` and a case have in common; fields and published figures are not parsed yet."""

    fields: dict[str, YamlNode]
    gate: dict[str, YamlNode]
    tags: tuple[str, ...]
    note: str


def read_shared(op: Op, node: YamlNode | None, what: str, known: Iterable[str], mistakes: list[Mistake]) -> Shared:
    """The keys that `defaults` and a case have in common; mistakes are collected."""
    keys: dict[str, YamlNode] = {}
    if node is not None:
        with collecting(mistakes):
            keys = known_entries(node, what, known, mistakes, _advice(op))
    fields: dict[str, YamlNode] = {}
    gate: dict[str, YamlNode] = {}
    tags: tuple[str, ...] = ()
    note = ""
    for key, value in keys.items():
        with collecting(mistakes):
            if key == "dtype":
                fields["dtype"] = value
            elif key in SECTIONS:
                fields.update(_read_section(op, key, value, mistakes))
            elif key == "gate":
                gate = known_entries(value, "gate", record_hints(GatePolicy), mistakes)
            elif key == "tags":
                tags = _read_tags(value)
            elif key == "note":
                note = read_node(value, "note", str)
    return Shared(fields, gate, tags, note)


def _advice(op: Op) -> dict[str, str]:
    """Corrections of keys that belong one level deeper."""
    sections = {item.name: "shapes" for item in op.inputs} | dict.fromkeys(record_hints(op.params), "params")
    return {name: f"write {section}: {{{name}: …}}" for name, section in sections.items()}


def _read_section(op: Op, section: str, node: YamlNode, mistakes: list[Mistake]) -> dict[str, YamlNode]:
    """The fields of shapes, params or inputs, by dotted path."""
    found: dict[str, YamlNode] = {}
    for key, value in entries_of(node, section).items():
        path = f"{section}.{key}"
        with collecting(mistakes):
            if section != "inputs":
                _known(op, path, node.keys[key])
                found[path] = value
                continue
            _known(op, f"{path}.kind", node.keys[key])
            for name, item in entries_of(value, path).items():
                with collecting(mistakes):
                    _known(op, f"{path}.{name}", value.keys[name])
                    found[f"{path}.{name}"] = item
    return found


def _known(op: Op, path: str, place: Position) -> Any:
    try:
        return known_field(op, path)
    except CaseError as error:
        raise wrong(place, str(error)) from error


def _read_tags(node: YamlNode) -> tuple[str, ...]:
    tags: tuple[str, ...] = read_node(node, "tags", tuple[str, ...])
    for tag, item in zip(tags, node.value, strict=True):
        if not _TAG.fullmatch(tag):
            raise wrong(item.place, f"a tag has letters, digits, '_', '.' and '-', not {show(tag)}")
    return tags


class Entry:
    """One item of `cases`, with the document's defaults merged in."""

    def __init__(self, op: Op, node: YamlNode, defaults: Shared, mistakes: list[Mistake]) -> None:
        self.op = op
        self.node = node
        self.mistakes = mistakes
        entries_of(node, "a case")
        self.clean = len(mistakes)
        self.own = read_shared(op, node, "a case", CASE_KEYS, mistakes)
        self.defaults = defaults

    def cases(self, room: int, *, sound: bool) -> list[Written]:
        """The cases of this entry, at most `room`; raises CaseFileError if there are more.

        If the defaults are not `sound`, the entry is read but not expanded.
        """
        axes = self._axes()
        rest = self._rest()
        if not sound or len(self.mistakes) > self.clean:
            return []
        count = count_points(axes)
        if count > room:
            text = f"the case expands to {count:,} cases; a file may have {MAX_CASES:,} in all"
            raise wrong(self.node.place, text)
        if count > 1 and "published" in self.node.value:
            text = f"published figures belong to one point; this case expands to {count:,}"
            raise wrong(self.node.keys["published"], text)
        paths = varying(axes)
        written: list[Written] = []
        for point in expand(axes):
            with collecting(self.mistakes):
                written.append(Written(self._case(point, paths, rest), self.node.place))
        return written

    def _case(self, point: Point, paths: Sequence[str], rest: dict[str, Any]) -> Case:
        values = {path: choice.value for path, choice in point.items()}
        name = point_name(rest["name"], paths, point)
        try:
            return build_case(self.op, values, **{**rest, "name": name})
        except CaseError as error:
            raise wrong(self._place_of(error.path, point), str(error)) from error

    def _place_of(self, path: str, point: Point) -> Position:
        if path in point:
            return point[path].place
        beneath = (choice.place for key, choice in point.items() if key.startswith(f"{path}."))
        return next(beneath, self.node.place)

    def _axes(self) -> list[SweepAxis]:
        zipped: list[SweepAxis] = []
        with collecting(self.mistakes):
            zipped = self._zip()
        tied = {path for axis in zipped for path in axis.paths}
        axes: list[SweepAxis] = []
        for path, node in {**self.defaults.fields, **self.own.fields}.items():
            if path not in tied:
                with collecting(self.mistakes):
                    axes.append(self._axis(path, node))
        return axes + zipped

    def _axis(self, path: str, node: YamlNode) -> SweepAxis:
        hint = known_field(self.op, path)
        swept = _is_sweep(hint, node)
        if swept and not node.value:
            raise wrong(node.place, f"{_title(path)} should be a value or a list of them, not []")
        rows: list[tuple[SweepValue]] = []
        for item in node.value if swept else [node]:
            with collecting(self.mistakes):
                choice = _choice(path, hint, item)
                if any(_same(choice.value, row.value) for (row,) in rows):
                    raise wrong(item.place, f"{_title(path)} lists {show(item.plain)} twice{_list_hint(hint, node)}")
                rows.append((choice,))
        return SweepAxis((path,), tuple(rows))

    def _zip(self) -> list[SweepAxis]:
        node = self.node.value.get("zip")
        if node is None:
            return []
        columns: dict[str, list[SweepValue]] = {}
        for path, values in entries_of(node, "zip").items():
            hint = _known(self.op, path, node.keys[path])
            if path in self.own.fields:
                raise wrong(node.keys[path], f"{path} is given both in zip and in the case")
            if not isinstance(values.value, list) or not values.value:
                raise wrong(values.place, f"zip needs a list of values for {path}, not {show(values.plain)}")
            columns[path] = [_choice(path, hint, item) for item in values.value]
        lengths = {path: len(column) for path, column in columns.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{path} has {length}" for path, length in lengths.items())
            raise wrong(node.place, f"the lists of zip differ in length: {said}")
        return [SweepAxis(tuple(columns), tuple(zip(*columns.values(), strict=True)))] if columns else []

    def _rest(self) -> dict[str, Any]:
        """The fields outside the identity."""
        keys = self.node.value
        tags = tuple(dict.fromkeys((*self.defaults.tags, *self.own.tags)))
        rest: dict[str, Any] = {"file": self.node.place.file, "line": self.node.place.line, "tags": tags}
        rest["note"] = self.own.note or self.defaults.note
        with collecting(self.mistakes):
            rest["name"] = self._name()
        with collecting(self.mistakes):
            rest["gate"] = self._gate()
        if "published" in keys:
            node = keys["published"]
            with collecting(self.mistakes):
                entries_of(node, "published")
                rest["published"] = located(node, lambda: read_published(node.plain))
        return rest

    def _name(self) -> str:
        node = self.node.value.get("name")
        if node is None:
            raise wrong(self.node.place, "the case has no name")
        name: str = read_node(node, "name", str)
        if not name.strip() or not name.isprintable():
            raise wrong(node.place, f"a name is one line of text, not {show(name)}")
        return name

    def _gate(self) -> GatePolicy:
        hints = record_hints(GatePolicy)
        nodes = {**self.defaults.gate, **self.own.gate}
        gate = GatePolicy(**{key: read_node(node, key, hints[key]) for key, node in nodes.items()})
        try:
            return check_gate(gate)
        except CaseError as error:
            raise wrong(nodes[error.path.removeprefix("gate.")].place, str(error)) from error


def _title(path: str) -> str:
    return path.removeprefix("params.")


def _same(one: Any, other: Any) -> bool:
    """Whether two values give the same case: equal, and not a boolean against a number."""
    return type(one) is type(other) and bool(one == other)


def _list_hint(hint: Any, node: YamlNode) -> str:
    """How to write the list as one value, if the field accepts lists."""
    try:
        read_value(node.plain, hint)
    except ValueError:
        return ""
    return f": a list is a sweep; for one list value write [{show(node.plain)}]"


def _choice(path: str, hint: Any, node: YamlNode) -> SweepValue:
    return SweepValue(read_node(node, _title(path), hint), node.place)


def _is_sweep(hint: Any, node: YamlNode) -> bool:
    """Whether a node lists several values: every list does, unless the field accepts only lists."""
    if not isinstance(node.value, list):
        return False
    return takes_scalars(hint) or any(isinstance(item.value, list) for item in node.value)
