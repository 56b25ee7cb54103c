"""One file into the store, whatever tool wrote it: the content says which."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opgauge.harness.errors import HarnessError, StoreError
from opgauge.harness.interchange.google_benchmark import is_google_benchmark, read_google_benchmark
from opgauge.harness.interchange.nvbench import is_nvbench, read_nvbench
from opgauge.harness.interchange.pytest_benchmark import is_pytest_benchmark, read_pytest_benchmark
from opgauge.harness.report.export import ImportFileError
from opgauge.harness.result.submission import Submission, parse, read_submission
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run

KNOWN = "`opgauge export --samples`, nvbench, pytest-benchmark and Google Benchmark"


def import_file(path: Path, store: Store) -> str:
    """Enter the run of a file; gives its id. Raises ImportFileError, or StoreError where it is there already."""
    run = read_file(path)
    if not add_run(store.engine, run):
        msg = f"run {run.id} of {path} is there already"
        raise StoreError(msg)
    return run.id


def read_file(path: Path) -> Submission:
    """The run of a file; raises ImportFileError, which says what is wrong."""
    try:
        content = path.read_bytes()
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return _read(parse(content), path, content, written)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise ImportFileError(msg) from error
    except (HarnessError, ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        msg = f"{path} is none of the files that {KNOWN} write: {reason}"
        raise ImportFileError(msg) from error


def _read(data: Any, path: Path, content: bytes, written: datetime) -> Submission:
    if not isinstance(data, dict):
        raise TypeError("it is no JSON object")
    if is_pytest_benchmark(data):
        return read_pytest_benchmark(data, content, written)
    if is_google_benchmark(data):
        return read_google_benchmark(data, content, written)
    if is_nvbench(data):
        return read_nvbench(data, path, content, written)
    return replace(read_submission(data), status="imported")
