"""Runs as files: JSON and CSV out, our own JSON in."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, StoreError
from harness.result import Ceilings, Result, to_json
from harness.store import Run, Store
from harness.store.bulk import add_run
from harness.submission import FORMAT, parse, read_submission
from harness.summary import record

DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


class ImportFileError(HarnessError):
    """A file that is no export of ours; the message says where it departs."""

    exit_code = 2


def records(run: Run, results: Sequence[Result], ceilings: Mapping[str, Ceilings]) -> list[dict[str, Any]]:
    """A flat record per result."""
    return [record(result, ceilings, run.id, run.commit) for result in results]


def as_json(data: Any) -> str:
    """Strict JSON: no NaN, no Infinity."""
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header; structures as JSON, and no cell that a spreadsheet would take for a formula."""
    out = io.StringIO()
    names = list(found[0]) if found else []
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in item.items()} for item in found)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        value = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(DANGEROUS):
        return "'" + value
    return "" if value is None else value


def whole_run(run: Run, results: Sequence[Result], ceilings: Mapping[str, Ceilings]) -> dict[str, Any]:
    """A run with everything that is stored of it, raw samples included; `import_run` reads it."""
    return {
        "opgauge": FORMAT,
        "run": {
            "id": run.id,
            "started": run.started.isoformat(),
            "finished": None if run.finished is None else run.finished.isoformat(),
            "status": run.status,
            "command": run.command,
            "environment": to_json(run.environment),
        },
        "ceilings": [to_json(item) for item in ceilings.values()],
        "results": [to_json(result) for result in results],
    }


def import_run(path: Path, store: Store) -> str:
    """Enter the run of an export made with samples; gives its id. Raises ImportFileError, StoreError."""
    try:
        run = read_submission(parse(path.read_bytes()))
    except (OSError, HarnessError) as error:
        msg = f"{path} is no export made by `opgauge export --samples`: {error}"
        raise ImportFileError(msg) from error
    if not add_run(store.engine, replace(run, status="imported")):
        msg = f"run {run.id} is there already"
        raise StoreError(msg)
    return run.id
