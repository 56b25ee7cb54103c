"""Exported runs as JSON and CSV; `opgauge.harness.interchange` has other formats, and imports."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opgauge.harness.errors import HarnessError
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Result
from opgauge.harness.result.submission import FORMAT
from opgauge.harness.result.summary import origin, record
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Run
from opgauge.harness.store.run_queries import RunInfo

DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20")
"""Beginnings that make a spreadsheet read a cell as a formula, the wide ones only in some languages."""


class ImportFileError(HarnessError):
    """A file that is not an export of opgauge; the message names the difference."""

    exit_code = 2


def records(run: Run, results: Sequence[Result], ceilings: Mapping[str, Ceilings]) -> list[dict[str, Any]]:
    """A flat record per result."""
    where = origin(run.id, run.started, run.environment)
    return [record(result, ceilings, where, run.environment.model(result.trial.device)) for result in results]


def as_json(data: Any) -> str:
    """Strict JSON: no NaN, no Infinity."""
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """CSV of records with the same fields in the same order, with a header.

    Structures are JSON, and no cell is one that a spreadsheet would read as a formula.
    """
    names = list(found[0]) if found else []
    cells = Cells()
    rows = ([cells[value] if type(value) is str else _cell(value) for value in item.values()] for item in found)
    return _table([names, *rows])


def _table(rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if type(value) in {dict, list}:
        return Cells()[json.dumps(value, allow_nan=False, ensure_ascii=False)]
    return value


class Cells(dict[str, str]):
    """Texts as cells that no spreadsheet reads as a formula, cached for all rows."""

    def __missing__(self, text: str) -> str:
        # some readers end the line at a lone carriage return, and read the rest as another cell
        plain = text.replace("\r\n", "\n").replace("\r", "\n")
        self[text] = cell = "'" + plain if plain.startswith(DANGEROUS) else plain
        return cell


class Quoted(dict[str, str]):
    """Texts as in `Cells`, quoted if a line of CSV requires it."""

    def __missing__(self, text: str) -> str:
        # an empty cell beside others needs no quotes
        self[text] = cell = _table([[Cells()[text], 0]])[:-3]
        return cell


def whole_run(run: Run | RunInfo, results: Sequence[Result], ceilings: Mapping[str, Ceilings]) -> dict[str, Any]:
    """A run with all stored data, including raw samples, for `opgauge import` and `opgauge push`.

    Case files of this tree are named relative to it, so that other machines find them.
    """
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
        "results": [_portable(result) for result in results],
    }


def _portable(result: Result) -> dict[str, Any]:
    data = to_json(result)
    case = data["trial"]["case"]
    file = Path(case["file"])
    if file.is_relative_to(ROOT):
        case["file"] = file.relative_to(ROOT).as_posix()
    return data
