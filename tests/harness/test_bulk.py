"""Entering whole runs: one writer at a time, in all processes that serve one database."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from opgauge.harness.store.writer_lock import WriterLock


def test_processes_take_turns(tmp_path: Path) -> None:
    """Who shares the file waits until the other is done, also where that one fails; who does not share it goes on."""
    ours, theirs, apart = WriterLock(), WriterLock(), WriterLock()
    for one in (ours, theirs):
        one.share(tmp_path / "turns")
    told: list[str] = []
    began = Event()

    def write() -> None:
        began.set()
        with theirs.taken():
            told.append("theirs")

    thread = Thread(target=write)

    def fail() -> None:
        with ours.taken():
            thread.start()
            began.wait()
            with apart.taken():
                told.append("apart")
            # long enough for the other to write if nothing held it back
            thread.join(0.2)
            told.append("ours")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    thread.join()
    assert told == ["apart", "ours", "theirs"]
