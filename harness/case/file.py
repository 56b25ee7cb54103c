"""Case files: YAML to cases, or a list of mistakes with their positions.

A file has a document per op: `op`, `defaults`, `cases`. In a case, a list of values where one is expected is a sweep;
sweeps multiply; `zip` names fields that vary together. A shape is a list itself: a list of shapes is a sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from opgauge.harness.case.case import Case
from opgauge.harness.case.document import YamlNode, read_documents
from opgauge.harness.case.entry import MAX_CASES, SHARED_KEYS, Entry, Written, read_shared
from opgauge.harness.case.hint import show
from opgauge.harness.case.reading import collecting, known_entries, located, read_node, wrong
from opgauge.harness.case.rules import known_op
from opgauge.harness.errors import CaseFileError, Mistake, Position

NOT_CASES = ("waivers.yaml", "policy.yaml")
"""Files in a folder of cases that contain none."""
DOCUMENT_KEYS = ("op", "defaults", "cases")
"""Keys of a document."""


def load_cases(paths: Sequence[Path], *, tags: Collection[str] | None = None) -> list[Case]:
    """The cases of files and folders, in order; only those with one of `tags`, if given.

    A folder stands for its *.yaml files except waivers.yaml and policy.yaml. Raises CaseFileError with every
    mistake found.
    """
    mistakes: list[Mistake] = []
    written: list[Written] = []
    for file in _files(paths, mistakes):
        here: list[Mistake] = []
        with collecting(here):
            written += _read_file(file, here)
        mistakes += sorted(dict.fromkeys(here), key=lambda one: (one.place.line, one.place.column))
    mistakes += _duplicates(written)
    if mistakes:
        raise CaseFileError(mistakes)
    return [case for case, _ in written if tags is None or not set(tags).isdisjoint(case.tags)]


def _files(paths: Iterable[Path], mistakes: list[Mistake]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        with collecting(mistakes):
            for file in _folder(path) if path.is_dir() else [path]:
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _folder(path: Path) -> list[Path]:
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise wrong(Position(str(path)), f"cannot be read: {error.strerror}") from error
    files = [file for file in inside if file.suffix in (".yaml", ".yml") and file.name not in NOT_CASES]
    if not files:
        raise wrong(Position(str(path)), "the folder has no case files (*.yaml)")
    return files


def _duplicates(written: Iterable[Written]) -> Iterator[Mistake]:
    by_id: dict[str, Written] = {}
    by_name: dict[tuple[str, str, str], Written] = {}
    for case, place in written:
        first = by_id.setdefault(case.id, Written(case, place))
        name = (place.file, case.op, case.name)
        namesake = by_name.setdefault(name, Written(case, place))
        if first.case is not case:
            text = f"{case.op} {case.name!r} is the same case as {first.case.name!r} at {first.place}"
            if place == first.place:
                text = f"the sweep of {case.op} gives one case twice: {first.case.name!r} and {case.name!r}"
            yield Mistake(place, text)
        elif namesake.case is not case:
            text = f"{case.op} has another case named {case.name!r} at {namesake.place}"
            yield Mistake(place, text)


def _read_file(file: Path, mistakes: list[Mistake]) -> list[Written]:
    written: list[Written] = []
    documents = [document for document in read_documents(file, mistakes) if document.value is not None]
    if not documents:
        raise wrong(Position(str(file), 1, 1), "the file is empty; a case file has an op and its cases")
    for document in documents:
        with collecting(mistakes):
            written += _read_document(document, mistakes, MAX_CASES - len(written))
    return written


def _read_document(document: YamlNode, mistakes: list[Mistake], room: int) -> list[Written]:
    if isinstance(document.value, list):
        raise wrong(document.place, "a document has one op, not a list; write a line `---` between the ops of a file")
    keys = known_entries(document, "a document", DOCUMENT_KEYS, mistakes)
    for key in ("op", "cases"):
        if key not in keys:
            raise wrong(document.place, f"{key} is missing")
    op = located(keys["op"], lambda: known_op(read_node(keys["op"], "op", str)))
    before = len(mistakes)
    defaults = read_shared(op, keys.get("defaults"), "defaults", SHARED_KEYS, mistakes)
    sound = len(mistakes) == before
    entries = keys["cases"]
    if not isinstance(entries.value, list) or not entries.value:
        raise wrong(entries.place, f"cases should be a list of cases, not {show(entries.plain)}")
    written: list[Written] = []
    for entry in entries.value:
        with collecting(mistakes):
            written += Entry(op, entry, defaults, mistakes).cases(room - len(written), sound=sound)
    return written
