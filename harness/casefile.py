"""Case files: YAML to cases, or a list of mistakes that says where each one stands.

A file has a document per op: `op`, `defaults`, `cases`. In a case, a list of values where
one is expected is a sweep; sweeps multiply; `zip` names fields that move together.
Shapes are lists anyway: a list of shapes is a sweep.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.case import Case, GatePolicy
from harness.caserules import SECTIONS, build_case, check_gate, known_field, known_op
from harness.casejson import read_published
from harness.document import Node, read_documents
from harness.errors import CaseError, CaseFileError, Mistake, Place
from harness.hint import did_you_mean, members, read_value, record_hints, show, takes_scalars
from harness.sweep import Axis, Choice, Point, count_points, expand, point_name, varying
from ops import Op

MAX_CASES = 10_000
NOT_CASES = ("waivers.yaml", "policy.yaml")
DOCUMENT_KEYS = ("op", "defaults", "cases")
SHARED_KEYS = ("tags", "dtype", *SECTIONS, "gate", "note")
CASE_KEYS = ("name", *SHARED_KEYS, "published", "zip")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Written(NamedTuple):
    """A case and where it is written."""

    case: Case
    place: Place


def load_cases(paths: Sequence[Path], *, tags: Collection[str] | None = None) -> list[Case]:
    """The cases of files and folders, in order; only those with one of `tags`, where given.

    A folder stands for its *.yaml files but waivers.yaml and policy.yaml. Raises
    CaseFileError with every mistake that could be found.
    """
    mistakes: list[Mistake] = []
    written: list[Written] = []
    for file in _files(paths, mistakes):
        with _collecting(mistakes):
            written += _read_file(file, mistakes)
    mistakes += _duplicates(written)
    if mistakes:
        raise CaseFileError(dict.fromkeys(mistakes))
    return [case for case, _ in written if tags is None or not set(tags).isdisjoint(case.tags)]


@contextmanager
def _collecting(mistakes: list[Mistake]) -> Iterator[None]:
    """Notes the mistakes of the block and goes on after it."""
    try:
        yield
    except CaseFileError as error:
        mistakes.extend(error.mistakes)


def _wrong(place: Place, text: str) -> CaseFileError:
    return CaseFileError([Mistake(place, text)])


def _files(paths: Iterable[Path], mistakes: list[Mistake]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if file.suffix in (".yaml", ".yml")]
            cases = [file for file in inside if file.name not in NOT_CASES]
            if not cases:
                mistakes.append(Mistake(Place(str(path)), "the folder has no case files (*.yaml)"))
        else:
            cases = [path]
        for file in cases:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _duplicates(written: Iterable[Written]) -> Iterator[Mistake]:
    by_id: dict[str, Written] = {}
    by_name: dict[tuple[str, str, str], Written] = {}
    for case, place in written:
        first = by_id.setdefault(case.id, Written(case, place))
        name = (place.file, case.op, case.name)
        namesake = by_name.setdefault(name, Written(case, place))
        if first.case is not case:
            text = f"{case.op} {case.name!r} is the same case as {first.case.name!r} at {first.place}"
            yield Mistake(place, text)
        elif namesake.case is not case:
            text = f"{case.op} has another case named {case.name!r} at {namesake.place}"
            yield Mistake(place, text)


def _read_file(file: Path, mistakes: list[Mistake]) -> list[Written]:
    written: list[Written] = []
    for document in read_documents(file, mistakes):
        with _collecting(mistakes):
            written += _read_document(document, mistakes, MAX_CASES - len(written))
    return written


def _read_document(document: Node, mistakes: list[Mistake], room: int) -> list[Written]:
    keys = _mapping(document, "a document", DOCUMENT_KEYS, mistakes)
    for key in ("op", "cases"):
        if key not in keys:
            raise _wrong(document.place, f"{key} is missing")
    op = _located(keys["op"], lambda: known_op(_value(keys["op"], "op", str)))
    before = len(mistakes)
    defaults = _read_shared(op, keys.get("defaults"), "defaults", SHARED_KEYS, mistakes)
    sound = len(mistakes) == before
    entries = keys["cases"]
    if not isinstance(entries.value, list) or not entries.value:
        raise _wrong(entries.place, f"cases should be a list of cases, not {show(entries.plain)}")
    written: list[Written] = []
    for entry in entries.value:
        with _collecting(mistakes):
            written += _Entry(op, entry, defaults, mistakes).cases(room - len(written), sound=sound)
    return written


def _mapping(node: Node, what: str, known: Iterable[str], mistakes: list[Mistake]) -> dict[str, Node]:
    """The entries of a mapping that are known; the others are mistakes."""
    entries = _entries(node, what)
    names = list(known)
    for key in entries:
        if key not in names:
            hint = "; use defaults, or an anchor per value" if key == "<<" else did_you_mean(key, names)
            mistakes.append(Mistake(node.keys[key], f"unknown key {key!r} of {what}{hint}"))
    return {key: value for key, value in entries.items() if key in names}


def _entries(node: Node, what: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise _wrong(node.place, f"{what} should be a mapping, not {show(node.plain)}")
    return node.value


def _value(node: Node, what: str, hint: Any) -> Any:
    try:
        return read_value(node.plain, hint)
    except ValueError as error:
        raise _wrong(node.place, f"{what} {error}") from error


def _located(node: Node, read: Any) -> Any:
    """What `read` gives; its CaseError gets the place of `node`, or of the entry it names."""
    try:
        return read()
    except CaseFileError:
        raise
    except CaseError as error:
        name = error.path.rpartition(".")[2]
        place = node.value[name].place if isinstance(node.value, dict) and name in node.value else node.place
        raise _wrong(place, str(error)) from error


@dataclass(frozen=True, slots=True)
class _Shared:
    """What defaults and a case have in common; fields and figures are not read yet."""

    fields: dict[str, Node]
    gate: dict[str, Node]
    tags: tuple[str, ...]
    note: str


def _read_shared(
    op: Op, node: Node | None, what: str, known: Iterable[str], mistakes: list[Mistake]
) -> _Shared:
    keys: dict[str, Node] = {}
    if node is not None:
        with _collecting(mistakes):
            keys = _mapping(node, what, known, mistakes)
    fields: dict[str, Node] = {}
    gate: dict[str, Node] = {}
    tags: tuple[str, ...] = ()
    note = ""
    for key, value in keys.items():
        with _collecting(mistakes):
            if key == "dtype":
                fields["dtype"] = value
            elif key in SECTIONS:
                fields.update(_read_section(op, key, value, mistakes))
            elif key == "gate":
                gate = _mapping(value, "gate", record_hints(GatePolicy), mistakes)
            elif key == "tags":
                tags = _read_tags(value)
            elif key == "note":
                note = _value(value, "note", str)
    return _Shared(fields, gate, tags, note)


def _read_section(op: Op, section: str, node: Node, mistakes: list[Mistake]) -> dict[str, Node]:
    """The fields of shapes, params or inputs, by dotted path."""
    found: dict[str, Node] = {}
    for key, value in _entries(node, section).items():
        path = f"{section}.{key}"
        with _collecting(mistakes):
            if section != "inputs":
                _known(op, path, node.keys[key])
                found[path] = value
                continue
            _known(op, f"{path}.kind", node.keys[key])
            for name, item in _entries(value, path).items():
                with _collecting(mistakes):
                    _known(op, f"{path}.{name}", value.keys[name])
                    found[f"{path}.{name}"] = item
    return found


def _known(op: Op, path: str, place: Place) -> Any:
    try:
        return known_field(op, path)
    except CaseError as error:
        raise _wrong(place, str(error)) from error


def _read_tags(node: Node) -> tuple[str, ...]:
    tags: tuple[str, ...] = _value(node, "tags", tuple[str, ...])
    for tag, item in zip(tags, node.value, strict=True):
        if not _TAG.fullmatch(tag):
            raise _wrong(item.place, f"a tag has letters, digits, '_', '.' and '-', not {show(tag)}")
    return tags


class _Entry:
    """One item of `cases`, with the document's defaults merged in."""

    def __init__(self, op: Op, node: Node, defaults: _Shared, mistakes: list[Mistake]) -> None:
        self.op = op
        self.node = node
        self.mistakes = mistakes
        _entries(node, "a case")
        self.clean = len(mistakes)
        self.own = _read_shared(op, node, "a case", CASE_KEYS, mistakes)
        self.defaults = defaults

    def cases(self, room: int, *, sound: bool) -> list[Written]:
        """The cases it stands for, at most `room`; raises CaseFileError for one point too many.

        Where the defaults are not `sound`, the entry is read but its points are not made.
        """
        axes = self._axes()
        rest = self._rest()
        if not sound or len(self.mistakes) > self.clean:
            return []
        count = count_points(axes)
        if count > room:
            text = f"the case expands to {count:,} cases; a file may have {MAX_CASES:,} in all"
            raise _wrong(self.node.place, text)
        if count > 1 and "published" in self.node.value:
            text = f"published figures belong to one point; this case expands to {count:,}"
            raise _wrong(self.node.keys["published"], text)
        paths = varying(axes)
        written: list[Written] = []
        for point in expand(axes):
            with _collecting(self.mistakes):
                written.append(Written(self._case(point, paths, rest), self.node.place))
        return written

    def _case(self, point: Point, paths: Sequence[str], rest: dict[str, Any]) -> Case:
        values = {path: choice.value for path, choice in point.items()}
        name = point_name(rest["name"], paths, point)
        try:
            return build_case(self.op, values, **{**rest, "name": name})
        except CaseError as error:
            raise _wrong(self._place_of(error.path, point), str(error)) from error

    def _place_of(self, path: str, point: Point) -> Place:
        if path in point:
            return point[path].place
        beneath = (choice.place for key, choice in point.items() if key.startswith(f"{path}."))
        return next(beneath, self.node.place)

    def _axes(self) -> list[Axis]:
        zipped: list[Axis] = []
        with _collecting(self.mistakes):
            zipped = self._zip()
        tied = {path for axis in zipped for path in axis.paths}
        axes: list[Axis] = []
        for path, node in {**self.defaults.fields, **self.own.fields}.items():
            if path not in tied:
                with _collecting(self.mistakes):
                    axes.append(self._axis(path, node))
        return axes + zipped

    def _axis(self, path: str, node: Node) -> Axis:
        hint = known_field(self.op, path)
        swept = _is_sweep(hint, node)
        if swept and not node.value:
            raise _wrong(node.place, f"{_title(path)} should be a value or a list of them, not []")
        items = node.value if swept else [node]
        return Axis((path,), tuple((_choice(path, hint, item),) for item in items))

    def _zip(self) -> list[Axis]:
        node = self.node.value.get("zip")
        if node is None:
            return []
        columns: dict[str, list[Choice]] = {}
        for path, values in _entries(node, "zip").items():
            hint = _known(self.op, path, node.keys[path])
            if path in self.own.fields:
                raise _wrong(node.keys[path], f"{path} is given both in zip and in the case")
            if not isinstance(values.value, list) or not values.value:
                raise _wrong(values.place, f"zip needs a list of values for {path}, not {show(values.plain)}")
            columns[path] = [_choice(path, hint, item) for item in values.value]
        lengths = {path: len(column) for path, column in columns.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{path} has {length}" for path, length in lengths.items())
            raise _wrong(node.place, f"the lists of zip differ in length: {said}")
        return [Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)))] if columns else []

    def _rest(self) -> dict[str, Any]:
        """The fields outside the identity."""
        keys = self.node.value
        tags = tuple(dict.fromkeys((*self.defaults.tags, *self.own.tags)))
        rest: dict[str, Any] = {"file": self.node.place.file, "line": self.node.place.line, "tags": tags}
        rest["note"] = self.own.note or self.defaults.note
        with _collecting(self.mistakes):
            rest["name"] = self._name()
        with _collecting(self.mistakes):
            rest["gate"] = self._gate()
        if "published" in keys:
            node = keys["published"]
            with _collecting(self.mistakes):
                _entries(node, "published")
                rest["published"] = _located(node, lambda: read_published(node.plain))
        return rest

    def _name(self) -> str:
        node = self.node.value.get("name")
        if node is None:
            raise _wrong(self.node.place, "the case has no name")
        name: str = _value(node, "name", str)
        if not name.strip() or not name.isprintable():
            raise _wrong(node.place, f"a name is one line of text, not {show(name)}")
        return name

    def _gate(self) -> GatePolicy:
        hints = record_hints(GatePolicy)
        nodes = {**self.defaults.gate, **self.own.gate}
        gate = GatePolicy(**{key: _value(node, key, hints[key]) for key, node in nodes.items()})
        try:
            return check_gate(gate)
        except CaseError as error:
            raise _wrong(nodes[error.path.removeprefix("gate.")].place, str(error)) from error


def _title(path: str) -> str:
    return path.removeprefix("params.")


def _choice(path: str, hint: Any, node: Node) -> Choice:
    return Choice(_value(node, _title(path), hint), node.place)


def _is_sweep(hint: Any, node: Node) -> bool:
    """Whether a node lists several values of a hint: any list does, unless lists are all that it takes."""
    if not isinstance(node.value, list):
        return False
    return takes_scalars(hint) or any(isinstance(item.value, list) for item in node.value)
