"""Inspection of many objects, which is cheap to repeat while none of them has changed.

It notes each object that it reads and the objects that it finds there. To repeat it, only these are read again, in
loops of the interpreter's own; names and types need no second look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Any

Read = Callable[[Any], Iterable[Any]]
END = object()
"""Last of the objects that are compared: it differs from all others, so a list that is shorter or longer differs."""


class Inspection:
    """Objects that were read, and `found`: a description of what they consist of, by name.

    tables: mappings that may grow, by name. Another inspection reads their entries, so that this one can be repeated.

    It owns all that it found, so no other object gets the same identity while the inspection exists.
    """

    def __init__(self, describe: Callable[[Inspection], dict[str, Any]]) -> None:
        self._describe = describe
        self._read: dict[Read, list[Any]] = defaultdict(list)
        self._parts: dict[Read, list[Any]] = defaultdict(list)
        self._evaluated: dict[Callable[[Any], Any], list[Any]] = defaultdict(list)
        self._values: dict[Callable[[Any], Any], list[Any]] = defaultdict(list)
        self._entries: dict[int, list[tuple[Any, Any]]] = {}
        self.tables: dict[str, Mapping[Any, Any]] = {}
        self.found = describe(self)

    def __eq__(self, other: object) -> bool:
        """Whether both found the same."""
        return self is other or (isinstance(other, Inspection) and self.found == other.found)

    __hash__ = None  # type: ignore[assignment]

    def repeated(self) -> Inspection:
        """This inspection if it would find the same objects and values now, else a new one."""
        return self if self._is_current() else Inspection(self._describe)

    def entries(self, mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        """Names and objects of a namespace or another mapping."""
        if id(mapping) not in self._entries:
            _, *found = self.parts(_flat, mapping)
            count = len(found) // 2
            self._entries[id(mapping)] = list(zip(found[:count], found[count:], strict=True))
        return self._entries[id(mapping)]

    def parts(self, read: Read, thing: Any) -> tuple[Any, ...]:
        """Objects that `read` returns of `thing`, of which the identities count."""
        found = tuple(read(thing))
        self._read[read].append(thing)
        self._parts[read] += found
        return found

    def value(self, evaluate: Callable[[Any], Any], thing: Any) -> Any:
        """Value that `evaluate` returns of `thing`, which is compared with later ones."""
        found = evaluate(thing)
        self._evaluated[evaluate].append(thing)
        self._values[evaluate].append(found)
        return found

    def _is_current(self) -> bool:
        """Whether all that was read is still there."""
        try:
            return all(
                all(map(is_, chain(chain.from_iterable(map(read, things)), (END,)), chain(self._parts[read], (END,))))
                for read, things in self._read.items()
            ) and all(
                list(map(evaluate, things)) == self._values[evaluate] for evaluate, things in self._evaluated.items()
            )
        except Exception:  # noqa: BLE001  an attribute is missing
            return False


def _flat(mapping: Mapping[Any, Any]) -> Iterable[Any]:
    """A mapping, which marks where its entries begin, its keys and its values."""
    return chain((mapping,), mapping, mapping.values())
