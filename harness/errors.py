"""Errors that `harness` raises.

HarnessError
├── CaseError          an invalid case: unknown op, wrong type, shapes that do not fit; also a ValueError
│   └── CaseFileError  mistakes in case files, each with file, line and column
├── StoreError         a database that cannot be used: missing, foreign, corrupt, read-only, too new
├── FilterError        a filter value that matches nothing
├── NothingError       nothing to measure or to show
├── TreeError          a tree whose `ops` the harness cannot use or compare
│   └── HeadError      the head of a gate cannot be built or imported
├── RefError           no git repository, or no such commit in it
├── SettingsError      an environment variable that cannot be read
├── ConfigurationError a project's configuration that cannot be used
├── TimeIsUpError      a command's budget ended while a worker was busy
└── WorkerError        the harness itself failed in a worker; carries its traceback

`exit_code` is what the command line ends with when the error reaches it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opgauge.harness.counting import counted

SHOWN = 20
"""Mistakes that one message lists."""


class HarnessError(Exception):
    """Base class of the harness's errors."""

    exit_code = 1


class CaseError(HarnessError, ValueError):
    """An invalid case; `path` names the field, such as `params.porder`."""

    exit_code = 2

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.path = path


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a file; line and column count from 1 and are 0 for the whole file."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a file, with its position."""

    place: Position
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class CaseFileError(CaseError):
    """One or more mistakes in case files; the message has a line for each of the first `SHOWN`."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        lines = [str(mistake) for mistake in self.mistakes[:SHOWN]]
        if len(self.mistakes) > SHOWN:
            lines.append(f"… and {counted(len(self.mistakes) - SHOWN, 'more mistake')}")
        super().__init__("\n".join(lines))


class SettingsError(HarnessError):
    """An environment variable that cannot be read; the message names it."""

    exit_code = 2


class ConfigurationError(HarnessError):
    """A project's configuration that cannot be used; the message names the file and the key."""

    exit_code = 2


class TimeIsUpError(HarnessError):
    """A command's budget ended while a worker was busy; the worker has been killed."""


class WorkerError(HarnessError):
    """The harness itself, not a kernel, failed in a worker; the message carries the worker's traceback."""


class StoreError(HarnessError):
    """A database that cannot be used; the message gives the reason and the remedy."""

    exit_code = 2


class TreeError(HarnessError):
    """A tree or stored results that the harness cannot use; the message gives the reason."""

    exit_code = 5


class HeadError(TreeError):
    """The head of a gate cannot be built or imported: the change broke it."""

    exit_code = 3


class RefError(HarnessError):
    """No git repository here, or no such commit in it; the message is git's."""

    exit_code = 2


class FilterError(HarnessError):
    """A filter value that matches nothing; the message has a line for each, with the nearest existing name."""

    exit_code = 2


class NothingError(HarnessError):
    """Nothing to measure or to display; the message lists what exists."""

    exit_code = 5
