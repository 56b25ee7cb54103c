"""The waiver file of the gate, loaded again when it changes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from opgauge.harness.errors import CaseFileError
from opgauge.harness.gate.waiver import Waiver, load_waivers
from opgauge.harness.judge.verdict import Subject


@dataclass(frozen=True, slots=True)
class WaiverFile:
    """Waivers of a file. error: fault of the file, whose waivers do not count then."""

    waivers: tuple[Waiver, ...] = ()
    error: str = ""

    def find(self, subject: Subject, verdict: str, ratio: float | None, today: date) -> Waiver | None:
        """The first waiver that covers this verdict today, up to the level that it expects; None if there is none."""
        for one in self.waivers:
            if verdict not in one.verdicts or one.is_expired(today) or not one.covers(subject):
                continue
            if one.expected_ratio is None or ratio is None or ratio <= one.expected_ratio:
                return one
        return None


def mark(path: Path | None) -> Hashable:
    """A value that changes with the file; None if there is none."""
    try:
        found = path.stat() if path else None
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size)


def read(path: Path | None) -> WaiverFile:
    """Contents of the file; empty if there is none."""
    if path is None or not path.is_file():
        return WaiverFile()
    try:
        return WaiverFile(load_waivers(path))
    except CaseFileError as error:
        return WaiverFile(error=str(error))
