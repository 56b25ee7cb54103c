"""Importing one file; its content identifies the tool that wrote it."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.harness.errors import HarnessError, StoreError
from opgauge.harness.interchange.google_benchmark import is_google_benchmark, read_google_benchmark
from opgauge.harness.interchange.nvbench import is_nvbench, read_nvbench
from opgauge.harness.interchange.pytest_benchmark import is_pytest_benchmark, read_pytest_benchmark
from opgauge.harness.interchange.self_test_file import has_self_tests, read_self_tests
from opgauge.harness.report.export import ImportFileError
from opgauge.harness.result.strict import SubmissionError
from opgauge.harness.result.submission import Submission, parse, read_submission
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import Entered, add_run
from opgauge.harness.store.self_tests import add_new

KNOWN = "`opgauge export --samples`, nvbench, pytest-benchmark and Google Benchmark"
"""Tools whose files are read, for messages."""


def enter_file(path: Path, store: Store, project: str = "") -> str:
    """Store the run or the self-tests of a file; returns in words what was stored. Raises as `import_file` does."""
    found = _parsed(path)
    if not has_self_tests(found.data):
        return f"run {_enter(path, _submission(path, found), store, project)}"
    try:
        return f"{add_new(store.engine, read_self_tests(found.data))} self-tests"
    except SubmissionError as error:
        msg = f"{path} is a file of opgauge, but cannot be imported: {error}"
        raise ImportFileError(msg) from error


def import_file(path: Path, store: Store, project: str = "") -> str:
    """Store the run of a file; returns its id. Raises ImportFileError, or StoreError if it is stored already.

    project: for a run that names none.
    """
    return _enter(path, read_file(path), store, project)


def _enter(path: Path, run: Submission, store: Store, project: str) -> str:
    if project and not run.environment.project:
        soft = {**run.environment.soft, "project": project}
        run = replace(run, environment=replace(run.environment, soft=soft))
    if add_run(store.engine, run) is Entered.SAME:
        msg = f"run {run.id} of {path} is stored already"
        raise StoreError(msg)
    return run.id


def read_file(path: Path) -> Submission:
    """The run of a file. Raises ImportFileError, with different messages for unreadable, foreign and faulty files."""
    return _submission(path, _parsed(path))


class _Parsed(NamedTuple):
    """A file's JSON, its bytes, and when it was written."""

    data: Any
    content: bytes
    written: datetime


def _parsed(path: Path) -> _Parsed:
    try:
        content = path.read_bytes().removeprefix(BOM_UTF8)
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise ImportFileError(msg) from error
    try:
        return _Parsed(parse(content), content, written)
    except SubmissionError as error:
        msg = f"{path} is not JSON that can be imported: {error}"
        raise ImportFileError(msg) from error


def _submission(path: Path, found: _Parsed) -> Submission:
    data, content, written = found
    tool, read = _reader(data)
    if read is None:
        msg = f"{path} is none of the files that {KNOWN} write"
        if isinstance(data, list) and any(isinstance(row, dict) and "run" in row for row in data):
            msg = f"{path} has results without samples: export them with --samples"
        raise ImportFileError(msg)
    try:
        return read(data, path, content, written)
    except (HarnessError, ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        msg = f"{path} is a file of {tool}, but cannot be imported: {reason}"
        raise ImportFileError(msg) from error


_Reader = Callable[[Any, Path, bytes, datetime], Submission]


def _reader(data: Any) -> tuple[str, _Reader | None]:
    """Name and reader of the tool that wrote `data`; no reader for other data."""
    if not isinstance(data, dict):
        return "", None
    if is_pytest_benchmark(data):
        return "pytest-benchmark", lambda data, _path, content, written: read_pytest_benchmark(data, content, written)
    if is_google_benchmark(data):
        return "Google Benchmark", lambda data, _path, content, written: read_google_benchmark(data, content, written)
    if is_nvbench(data):
        return "nvbench", read_nvbench
    return ("opgauge", _read_own) if "opgauge" in data else ("", None)


def _read_own(data: Any, _path: Path, _content: bytes, _written: datetime) -> Submission:
    """The run of an export of opgauge; an interrupted run stays so, so that its continuation can replace it."""
    found = read_submission(data)
    return found if found.status == "interrupted" else replace(found, status="imported")
