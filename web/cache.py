"""Answers cached in memory until the data that they depend on change."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, RLock, local
from time import monotonic, time_ns
from typing import Any, TypeVar

Answer = TypeVar("Answer")
_MISSING: Any = object()
"""In place of an answer that there is not; None may be one."""
_log = logging.getLogger("opgauge")


class WriteSignal:
    """Signal between processes that one of them has written: the modification time of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._time()

    def send(self) -> None:
        """Signal a write to the other processes. Without the file they notice it as they notice new runs."""
        self._seen = time_ns()
        with suppress(OSError):
            os.utime(self._path, ns=(self._seen, self._seen))

    def was_sent(self) -> bool:
        """Whether another process has signalled since the last call."""
        before, self._seen = self._seen, self._time()
        return self._seen != before

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

    version: version of the data, cheap to read. warm: computes the expensive answers. With `follow` running in a
    thread, old answers are served until the expensive ones of the new version are computed. Without it every `get`
    reads the version. writes: signal of other processes that write.
    """

    def __init__(
        self,
        version: Callable[[], Hashable],
        *,
        size: int = 512,
        warm: Callable[[], object] = int,
        writes: WriteSignal | None = None,
    ) -> None:
        self._ask = version
        self._writes = writes
        self._size = size
        self._warm = warm
        self._lock = Lock()
        self._own = local()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._kept: dict[Hashable, Any] = {}
        self._turns: dict[Hashable, RLock] = {}
        self._version: Hashable = None
        self._is_followed = False
        self._stop = Event()

    def forget(self) -> None:
        """Take up the data as they are now: the caller has just written."""
        with self._lock:
            self._take_up()
            if self._writes:
                self._writes.send()

    def get(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """The answer under `key`, made where there is none; threads that want it meanwhile wait for it."""
        answers, kept = self._current()
        found: Answer = self._find(key, answers, kept)
        if found is not _MISSING:
            return found
        with self.turn(key):
            found = self._find(key, answers, kept)
            if found is _MISSING:
                found = make()
                with self._lock:
                    # if the version has changed meanwhile, these answers are no longer read
                    answers[key] = found
                    while len(answers) > self._size:
                        answers.popitem(last=False)
        return found

    def _find(self, key: Hashable, answers: OrderedDict[Hashable, Any], kept: Mapping[Hashable, Any]) -> Any:
        """The answer under `key`, or `_MISSING`."""
        with self._lock:
            if key in kept:
                return kept[key]
            if key in answers:
                answers.move_to_end(key)
            return answers.get(key, _MISSING)

    @contextmanager
    def turn(self, key: Hashable) -> Iterator[None]:
        """Only one thread at a time makes the answer under `key`; the others wait."""
        with self._lock:
            turn = self._turns.setdefault(key, RLock())
        with turn:
            try:
                yield
            finally:
                with self._lock:
                    self._turns.pop(key, None)

    def advance(self) -> bool:
        """Switch to a new version once its expensive answers are computed; returns whether there was one."""
        found = self._ask()
        if found == self._version:
            return False
        self._own.answers = OrderedDict()
        try:
            self._warm()
            with self._lock:
                # these are never evicted, however many pages are requested
                self._answers, self._kept, self._version = OrderedDict(), dict(self._own.answers), found
        finally:
            del self._own.answers
        return True

    def follow(self, every_s: float) -> None:
        """Advance until `stop`, pausing longer than that takes; after an error, try again at the next interval."""
        self._is_followed = True
        while not self._stop.is_set():
            began = monotonic()
            try:
                self.advance()
            except Exception:  # noqa: BLE001  the thread must not end, and logs it
                _log.exception("answers could not be computed")
            self._stop.wait(max(every_s, 3 * (monotonic() - began)))

    def stop(self) -> None:
        """End `follow`."""
        self._stop.set()

    def _current(self) -> tuple[OrderedDict[Hashable, Any], dict[Hashable, Any]]:
        """Answers that may be evicted, and those that may not."""
        own: OrderedDict[Hashable, Any] | None = getattr(self._own, "answers", None)
        if own is not None:
            return own, {}
        if not self._is_followed:
            found = self._ask()
            with self._lock:
                if found != self._version:
                    self._answers, self._kept, self._version = OrderedDict(), {}, found
        with self._lock:
            if self._writes and self._writes.was_sent():
                self._take_up()
            return self._answers, self._kept

    def _take_up(self) -> None:
        self._answers, self._kept = OrderedDict(), {}
        self._version = self._ask()
