"""An inspection is repeated only while nothing has changed that it describes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.harness.worker import loaded_code, variation
from opgauge.harness.worker.inspection import Inspection
from opgauge.harness.worker.loaded_code import changed_code, code, definitions, tables


class Parts:
    """Objects of each kind that an inspection reads."""

    def __init__(self) -> None:
        def outer(shared: int) -> FunctionType:
            def inner(first: object = (), *, second: object = ()) -> object:
                return first, second, shared

            assert isinstance(inner, FunctionType)
            return inner

        self.function = outer(1000)
        self.owner = type("Owner", (), {"method": self.function})
        self.first: dict[str, Any] = {"one": object(), "two": object()}
        self.second: dict[str, Any] = {}
        self.place = SimpleNamespace(one=object(), two=object())
        self.word = ctypes.c_size_t(7)

    def describe(self, look: Inspection) -> dict[str, Any]:
        """Identities and values of all of them."""
        found: dict[str, Any] = {}
        for name in ("first", "second"):
            found |= {f"{name}.{key}": id(value) for key, value in look.entries(getattr(self, name))}
        for key, value in look.entries(vars(self.owner)):
            found[f"owner.{key}"] = id(value)
        found["place"] = tuple(map(id, look.parts(place_of, self.place)))
        found["function"] = loaded_code._parts(look, "function", self.function, "")
        found["word"] = look.value(loaded_code.WORD, self.word)
        return found


def place_of(thing: Any) -> tuple[Any, ...]:
    """Attributes of the object in `Parts.place`."""
    return thing.one, thing.two


def move_last_entry(parts: Parts) -> None:
    """The same keys and values in the same order, in other mappings."""
    parts.second["two"] = parts.first.pop("two")


CHANGES: list[Callable[[Parts], Any]] = [
    lambda parts: parts.first.update(one=object()),
    lambda parts: parts.first.update(three=parts.first.pop("two")),
    lambda parts: parts.first.pop("two"),
    lambda parts: parts.second.update(three=None),
    move_last_entry,
    lambda parts: setattr(parts.owner, "method", lambda: None),
    lambda parts: setattr(parts.place, "two", object()),
    lambda parts: setattr(parts.function, "__defaults__", ((1,),)),
    lambda parts: setattr(parts.function, "__kwdefaults__", {"second": 1}),
    lambda parts: setattr(parts.function, "__code__", parts.function.__code__.replace(co_firstlineno=1)),
    lambda parts: setattr((parts.function.__closure__ or ())[0], "cell_contents", 2000),
    lambda parts: setattr(parts.word, "value", 8),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(change: Callable[[Parts], Any]) -> None:
    """An entry, its name or its place; a part of an object or of a function; a number in memory."""
    parts = Parts()
    before = Inspection(parts.describe)
    assert before.repeated() is before
    change(parts)
    after = before.repeated()
    assert after is not before
    assert after != before
    assert after.found == Inspection(parts.describe).found
    assert after.repeated() is after


def test_a_lost_attribute_is_found() -> None:
    """Reading it again raises an error."""
    parts = Parts()
    before = Inspection(parts.describe)
    del parts.place.two
    with pytest.raises(AttributeError):
        before.repeated()


def test_objects_that_were_found_live_on() -> None:
    """Else another object could get the identity of one that was replaced."""
    parts = Parts()
    before = Inspection(parts.describe)
    for _ in range(1000):
        parts.first["one"] = object()
        assert before.repeated().found["first.one"] != before.found["first.one"]


@pytest.mark.parametrize("inspect", [code, definitions])
def test_code_of_the_process_is_read_once(inspect: Callable[[], Inspection], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it changes; what is described then is what a first inspection describes."""
    inspect()
    before = inspect()
    assert inspect() is before
    name = "opgauge.ops._core.dtype.dtype_info" if inspect is definitions else "numpy.isfinite"
    module, _, function = name.rpartition(".")
    monkeypatch.setattr(sys.modules[module], function, np.isnan)
    after = inspect()
    assert after.found[name] != before.found[name]
    assert after.found.keys() == before.found.keys()


def test_a_table_of_the_harness_may_grow_and_its_entries_may_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches get entries; only the tables are read again then."""
    table: dict[str, object] = {"first": object()}
    monkeypatch.setattr(variation, "_FOUND", table)
    before, known = code(), tables()
    table["second"] = object()
    assert code() is before
    grown = tables()
    assert not changed_code(known, grown)
    table["second"] = object()
    assert changed_code(grown, tables()) == "replaced opgauge.harness.worker.variation._FOUND['second']"
    assert code() is before
