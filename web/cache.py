"""Answers kept in memory for as long as the data they rest on stays the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Cache:
    """The latest `size` answers by key; all of them go when `version` gives something new.

    version: what the data are at, cheap to ask. hold_s: seconds for which an answer of
    `version` is believed, so that a stream of writes does not make every page anew.
    """

    def __init__(self, version: Callable[[], Hashable], *, size: int = 512, hold_s: float = 0.0) -> None:
        self._ask = version
        self._size = size
        self._hold_s = hold_s
        self._lock = Lock()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._version: Hashable = None
        self._asked_s = float("-inf")

    @property
    def version(self) -> Hashable:
        """What the data are at."""
        if monotonic() - self._asked_s > self._hold_s:
            found = self._ask()
            with self._lock:
                if found != self._version:
                    self._answers.clear()
                self._version, self._asked_s = found, monotonic()
        return self._version

    def forget(self) -> None:
        """Drop everything: the caller has just written."""
        with self._lock:
            self._answers.clear()
            self._asked_s = float("-inf")

    def get(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """The answer under `key`, made where there is none; two threads may both make it."""
        version = self.version
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                found: Answer = self._answers[key]
                return found
        made = make()
        with self._lock:
            if version == self._version:
                self._answers[key] = made
                while len(self._answers) > self._size:
                    self._answers.popitem(last=False)
        return made
