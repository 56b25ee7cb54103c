"""Load of the host: idle and own time of two processors, as a clock and the system's file report them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgauge.ops._cpu import load
from opgauge.ops._cpu.load import WINDOW_S, HostLoad


class Host:
    """Two processors for which time passes by `spend`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.own, self.idle = 100.0, 5.0, 150.0
        self.file = folder / "uptime"
        monkeypatch.setattr(load, "UPTIME", self.file)
        monkeypatch.setattr(load, "monotonic", lambda: self.now)
        monkeypatch.setattr(load, "process_time", lambda: self.own)
        self.spend(0, own=0, others=0)

    def spend(self, seconds: float, *, own: float, others: float) -> None:
        """Let `own` and `others` processors be used for that long."""
        self.now += seconds
        self.own += own * seconds
        self.idle += (2 - own - others) * seconds
        self.file.write_text(f"{self.now:.2f} {self.idle:.2f}\n", encoding="ascii")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with two processors."""
    return Host(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("own", "others", "free"),
    [(0, 0, True), (1, 0, True), (2, 0, True), (1, 0.2, True), (1, 1, False), (0, 1, False), (1.2, 0.8, False)],
)
def test_processors_are_free_unless_others_use_them(host: Host, own: float, others: float, free: bool) -> None:
    """What this process uses is free; one processor in use by others is one too many of two."""
    seen = HostLoad()
    assert seen.leaves_processors()
    host.spend(2 * WINDOW_S, own=own, others=others)
    assert seen.leaves_processors() == free


def test_the_load_is_read_once_per_window(host: Host) -> None:
    """Between readings the last answer holds; a neighbour that ends is noticed after a window."""
    seen = HostLoad()
    seen.leaves_processors()
    answers = []
    for others in (1, 1, 0, 0):
        host.spend(WINDOW_S * 0.6, own=1, others=others)
        answers.append(seen.leaves_processors())
    assert answers == [True, False, False, True]


@pytest.mark.parametrize("text", ["", "100.00 0.00\n", "nothing here\n"])
def test_without_counters_processors_are_free(host: Host, text: str) -> None:
    """A system without the file, or that counts no idle time, has free processors."""
    seen = HostLoad()
    for _ in range(3):
        host.spend(2 * WINDOW_S, own=1, others=1)
        host.file.write_text(text, encoding="ascii")
        assert seen.leaves_processors()
    host.file.unlink()
    host.now += 2 * WINDOW_S
    assert seen.leaves_processors()
