"""Reading YAML nodes by expected type; a mismatch becomes a mistake with its position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from opgauge.harness.case.document import YamlNode
from opgauge.harness.case.hint import did_you_mean, read_value, show
from opgauge.harness.errors import CaseError, CaseFileError, Mistake, Position


@contextmanager
def collecting(mistakes: list[Mistake]) -> Iterator[None]:
    """Appends the mistakes of the block to `mistakes` and continues after the block."""
    try:
        yield
    except CaseFileError as error:
        mistakes.extend(error.mistakes)


def wrong(place: Position, text: str) -> CaseFileError:
    """An error with one mistake, to be raised."""
    return CaseFileError([Mistake(place, text)])


def known_entries(
    node: YamlNode,
    what: str,
    known: Iterable[str],
    mistakes: list[Mistake],
    advice: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, YamlNode]:
    """The entries of a mapping with known keys; unknown keys are appended to `mistakes`.

    advice: by unknown key, what to write instead of it; by default the nearest known key is suggested.
    """
    entries = entries_of(node, what)
    names = list(known)
    corrections = {"<<": "use defaults, or an anchor per value", **advice}
    for key in entries:
        if key not in names:
            hint = f"; {corrections[key]}" if key in corrections else did_you_mean(key, names)
            mistakes.append(Mistake(node.keys[key], f"unknown key {key!r} of {what}{hint}"))
    return {key: value for key, value in entries.items() if key in names}


def entries_of(node: YamlNode, what: str) -> dict[str, YamlNode]:
    """The entries of a mapping; raises CaseFileError for anything else."""
    if not isinstance(node.value, dict):
        raise wrong(node.place, f"{what} should be a mapping, not {show(node.plain)}")
    return node.value


def read_node(node: YamlNode, what: str, hint: Any) -> Any:
    """The node's value converted to `hint`; raises CaseFileError, calling the value `what`."""
    try:
        return read_value(node.plain, hint)
    except ValueError as error:
        raise wrong(node.place, f"{what} {error}") from error


def read_names(node: YamlNode, what: str, known: Iterable[str]) -> tuple[str, ...]:
    """A list of known names; raises CaseFileError for an unknown one, with its position."""
    names: tuple[str, ...] = read_node(node, what, tuple[str, ...])
    for name, item in zip(names, node.value, strict=True):
        if name not in known:
            raise wrong(item.place, f"unknown name {name!r} in {what}{did_you_mean(name, known)}")
    return names


def located(node: YamlNode, read: Callable[[], Any]) -> Any:
    """The result of `read`; a CaseError gets the position of `node`, or of the entry that it names."""
    try:
        return read()
    except CaseFileError:
        raise
    except CaseError as error:
        name = error.path.rpartition(".")[2]
        place = node.value[name].place if isinstance(node.value, dict) and name in node.value else node.place
        raise wrong(place, str(error)) from error
