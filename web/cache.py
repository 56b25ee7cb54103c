"""Answers kept in memory for as long as the data they rest on stays the same."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, local
from time import monotonic, time_ns
from typing import Any, TypeVar

Answer = TypeVar("Answer")
_log = logging.getLogger("opgauge")


class Bell:
    """A file's time, by which several processes tell each other that one has written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heard = self._time()

    def ring(self) -> None:
        """Tell the others; this process knows. Without the file they see it a moment later, as they see new runs."""
        self._heard = time_ns()
        with suppress(OSError):
            os.utime(self._path, ns=(self._heard, self._heard))

    def has_rung(self) -> bool:
        """Whether another has rung since this was last asked."""
        before, self._heard = self._heard, self._time()
        return self._heard != before

    def _time(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


class ProjectCache:
    """A cache whose keys belong to one project."""

    def __init__(self, cache: Cache, project: str | None) -> None:
        self._cache = cache
        self._project = project

    def get(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """The answer under `key`, made if there is none."""
        return self._cache.get((self._project, key), make)

    def forget(self) -> None:
        """Load the data anew: the caller has just written."""
        self._cache.forget()


class Cache:
    """The latest `size` answers by key; all of them go when `version` gives something new.

    version: what the data are at, cheap to ask. warm: makes the answers that are dear. With
    `follow` running in a thread, answers stay as they are until those of the new version are warm: nobody
    waits for them. Without it every `get` asks for the version. bell: of other processes that write.
    """

    def __init__(
        self,
        version: Callable[[], Hashable],
        *,
        size: int = 512,
        warm: Callable[[], object] = int,
        bell: Bell | None = None,
    ) -> None:
        self._ask = version
        self._bell = bell
        self._size = size
        self._warm = warm
        self._lock = Lock()
        self._own = local()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._kept: dict[Hashable, Any] = {}
        self._version: Hashable = None
        self._is_followed = False
        self._stop = Event()

    def forget(self) -> None:
        """Take up the data as they are now: the caller has just written."""
        with self._lock:
            self._take_up()
            if self._bell:
                self._bell.ring()

    def get(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """The answer under `key`, made where there is none; two threads may both make it."""
        answers, kept = self._current()
        with self._lock:
            if key in kept:
                dear: Answer = kept[key]
                return dear
            if key in answers:
                answers.move_to_end(key)
                found: Answer = answers[key]
                return found
        made = make()
        with self._lock:
            # where the version has moved on meanwhile, this one is nobody's any more
            answers[key] = made
            while len(answers) > self._size:
                answers.popitem(last=False)
        return made

    def advance(self) -> bool:
        """Take up a new version once its dear answers are made; says whether there was one."""
        found = self._ask()
        if found == self._version:
            return False
        self._own.answers = OrderedDict()
        try:
            self._warm()
            with self._lock:
                # however many pages are asked for, these are not pushed out
                self._answers, self._kept, self._version = OrderedDict(), dict(self._own.answers), found
        finally:
            del self._own.answers
        return True

    def follow(self, every_s: float) -> None:
        """Advance again and again until `stop`, resting longer than it takes; errors wait for the next time."""
        self._is_followed = True
        while not self._stop.is_set():
            began = monotonic()
            try:
                self.advance()
            except Exception:  # noqa: BLE001  a thread that must not end; it is in the log
                _log.exception("answers could not be made anew")
            self._stop.wait(max(every_s, 3 * (monotonic() - began)))

    def stop(self) -> None:
        """End `follow`."""
        self._stop.set()

    def _current(self) -> tuple[OrderedDict[Hashable, Any], dict[Hashable, Any]]:
        """Answers that may go, and those that stay."""
        own: OrderedDict[Hashable, Any] | None = getattr(self._own, "answers", None)
        if own is not None:
            return own, {}
        if not self._is_followed:
            found = self._ask()
            with self._lock:
                if found != self._version:
                    self._answers, self._kept, self._version = OrderedDict(), {}, found
        with self._lock:
            if self._bell and self._bell.has_rung():
                self._take_up()
            return self._answers, self._kept

    def _take_up(self) -> None:
        self._answers, self._kept = OrderedDict(), {}
        self._version = self._ask()
