"""What opgauge doctor finds, on a file system made for it; and the lock of a GPU."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from opgauge.harness.run import device_lock
from opgauge.harness.run.device_lock import device_locks
from opgauge.harness.run.doctor import as_facts, examine

FACTS = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": ("powersave", "performance"),
    "sys/devices/system/cpu/cpufreq/boost": ("1", "0"),
    "sys/devices/system/cpu/smt/active": ("1", "0"),
    "sys/fs/cgroup/cpu.max": ("200000 100000", "max 100000"),
    "proc/pressure/cpu": ("some avg10=40.00 avg60=0.00", "some avg10=0.10 avg60=0.00"),
}
"""By file: contents of an unfit machine and of a fit one."""
SUBJECTS = ("governor", "boost", "SMT", "cgroup quota", "CPU pressure")


@pytest.mark.parametrize("is_fit", [False, True])
def test_each_fact_is_judged(tmp_path: Path, *, is_fit: bool) -> None:
    """A fact that makes times unreliable has a line of advice; a good one has none."""
    for name, contents in FACTS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[is_fit])
    found = {one.subject: one for one in examine("cpu", tmp_path)}
    assert [found[subject].is_good for subject in SUBJECTS] == [is_fit] * len(SUBJECTS)
    assert all(bool(one.advice) is not one.is_good for one in found.values())
    assert as_facts(list(found.values()))["findings"][0]["subject"] == "governor"


def test_nothing_to_read_is_no_finding(tmp_path: Path) -> None:
    """A machine that tells nothing has findings about load and steal only."""
    assert {one.subject for one in examine("cpu", tmp_path)} == {"load", "steal"}


def test_two_do_not_measure_on_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits until the first has ended, and says so; other GPUs and the CPU are free."""
    monkeypatch.setattr(device_lock, "lock_path", lambda device: tmp_path / device)
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with device_locks(["cuda:0"], told.append):
            order.append("second")

    thread = threading.Thread(target=second)
    with device_locks(["cuda", "cpu"], told.append):
        with device_locks(["cuda:1"], told.append):
            thread.start()
            while not told:
                os.sched_yield()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert told == ["cuda:0: another opgauge measures on it; waiting"]
