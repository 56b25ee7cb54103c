"""The waiver file that the gate reads, as the pages show it: read anew when it changes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from opgauge.harness.errors import CaseFileError
from opgauge.harness.gate.waiver import Waiver, load_waivers
from opgauge.harness.judge.verdict import Subject


@dataclass(frozen=True, slots=True)
class Excuses:
    """The waivers of a file. error: what is wrong with it; its waivers do not count then."""

    waivers: tuple[Waiver, ...] = ()
    error: str = ""

    def find(self, subject: Subject, verdict: str, ratio: float | None, today: date) -> Waiver | None:
        """The first that excuses this verdict today; a new level above what it expects is not excused."""
        for one in self.waivers:
            if verdict not in one.verdicts or one.is_expired(today) or not one.covers(subject):
                continue
            if one.expected_ratio is None or ratio is None or ratio <= one.expected_ratio:
                return one
        return None


def mark(path: Path | None) -> Hashable:
    """Something that changes with the file; None where there is none."""
    try:
        found = path.stat() if path else None
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size)


def read(path: Path | None) -> Excuses:
    """What the file says; nothing where there is none."""
    if path is None or not path.is_file():
        return Excuses()
    try:
        return Excuses(load_waivers(path))
    except CaseFileError as error:
        return Excuses(error=str(error))
