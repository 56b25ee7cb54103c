"""Kept answers: as new as the data, and no request waits for the dear ones."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from opgauge.web.cache import Cache, WriteSignal


class Data:
    """Something that changes."""

    def __init__(self) -> None:
        self.version = 1
        self.made = 0

    def make(self) -> str:
        """An answer that says what it rests on."""
        self.made += 1
        return f"of {self.version}"


def test_an_answer_is_kept_until_the_data_change() -> None:
    """Made once for each version."""
    data = Data()
    cache = Cache(lambda: data.version)
    assert [cache.get("a", data.make) for _ in range(3)] == ["of 1"] * 3
    data.version = 2
    assert cache.get("a", data.make) == "of 2"
    assert data.made == 2


def test_threads_wait_for_an_answer_that_is_being_made() -> None:
    """It is made once; after a fault the next thread makes it."""
    cache = Cache(lambda: 1)
    begun, going = Event(), Event()
    made: list[str] = []

    def make() -> str:
        begun.set()
        going.wait()
        made.append("")
        if len(made) == 1:
            msg = "the first fails"
            raise ValueError(msg)
        return "found"

    answers: list[str] = []

    def look() -> None:
        with suppress(ValueError):
            answers.append(cache.get("a", make))

    threads = [Thread(target=look) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait()
    going.set()
    for thread in threads:
        thread.join()
    assert (answers, len(made)) == (["found"] * 4, 2)


def test_only_so_many_are_kept() -> None:
    """The one that was not asked for longest goes first."""
    data = Data()
    cache = Cache(lambda: data.version, size=2)
    for key in ("a", "b", "a", "c", "a"):
        cache.get(key, data.make)
    assert data.made == 3
    cache.get("b", data.make)
    assert data.made == 4


def test_dear_answers_are_not_pushed_out() -> None:
    """However many others are asked for."""
    data = Data()
    cache = Cache(lambda: data.version, size=2, warm=lambda: cache.get("dear", data.make))
    cache.advance()
    for key in range(5):
        cache.get(key, data.make)
    assert data.made == 6
    cache.get("dear", data.make)
    assert data.made == 6


def test_followed_answers_stay_until_the_new_ones_are_made() -> None:
    """While the dear answers of a new version are being made, the old ones are given; then all change at once."""
    data = Data()
    begun, go_on, done = Event(), Event(), Event()

    def warm() -> None:
        if data.version == 2:
            begun.set()
            go_on.wait(10)
        cache.get("dear", data.make)

    cache = Cache(lambda: data.version, warm=warm)
    cache.advance()
    cache._is_followed = True
    data.version = 2

    def advance() -> None:
        cache.advance()
        done.set()

    thread = Thread(target=advance)
    thread.start()
    assert begun.wait(10)
    assert cache.get("dear", data.make) == "of 1"
    go_on.set()
    assert done.wait(10)
    thread.join()
    assert cache.get("dear", data.make) == "of 2"
    assert data.made == 2


def test_a_fault_does_not_end_following(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next round tries again."""
    data = Data()
    tried = Event()

    def warm() -> None:
        if data.version == 1:
            data.version = 2
            msg = "once"
            raise RuntimeError(msg)
        tried.set()

    cache = Cache(lambda: data.version, warm=warm)
    thread = Thread(target=cache.follow, args=(0.01,))
    thread.start()
    assert tried.wait(10)
    cache.stop()
    thread.join()
    assert "once" in caplog.text


def test_what_was_written_here_is_seen_at_once() -> None:
    """`forget` takes up the new version even while followed."""
    data = Data()
    cache = Cache(lambda: data.version)
    cache.advance()
    cache._is_followed = True
    assert cache.get("a", data.make) == "of 1"
    data.version = 2
    assert cache.get("a", data.make) == "of 1"
    cache.forget()
    assert cache.get("a", data.make) == "of 2"


def test_what_one_process_writes_all_see(tmp_path: Path) -> None:
    """`forget` signals a write: other followed caches over the same data reload once, and this one does not."""
    (tmp_path / "writes").touch()
    data = Data()
    ours, other = (Cache(lambda: data.version, writes=WriteSignal(tmp_path / "writes")) for _ in range(2))
    for cache in (ours, other):
        cache.stop()
        cache.follow(0)
        cache.advance()
        assert cache.get("a", data.make) == "of 1"
    data.version = 2
    assert other.get("a", data.make) == "of 1"
    ours.forget()
    made = data.made
    assert [cache.get("a", data.make) for cache in (ours, other, other, ours)] == ["of 2"] * 4
    assert data.made == made + 2


def test_a_bell_that_is_gone_hinders_nobody(tmp_path: Path) -> None:
    """The folder for temporary files may be swept while the service runs."""
    (tmp_path / "writes").touch()
    writes = WriteSignal(tmp_path / "writes")
    (tmp_path / "writes").unlink()
    writes.send()
    assert Cache(lambda: 1, writes=writes).get("a", lambda: "made") == "made"
