"""The file of launch parameters that `opgauge tune` writes for a device, and `opgauge.ops._core.tuning` reads.

`values` has the parameters that differ from their default. `parameters` says how each was found. Entries of parameters
that were not measured this time stay, those of parameters that no longer exist are deleted. Numbers are sorted and
rounded, so that two files of equal content have equal text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from opgauge.harness.result.result import Environment
from opgauge.harness.run.environment import PACKAGES
from opgauge.harness.tune.tuner import TuningFinding
from opgauge.ops import TuningError
from opgauge.ops._core.tuning import parameters, read

DIGITS = 4
"""Decimal places of ratios."""


def write(
    path: Path,
    model: str,
    device: str,
    findings: Iterable[TuningFinding],
    environment: Environment,
    commit: str,
    today: date,
) -> None:
    """Write `findings` into the file of the device called `model`, a new one if there is none.

    Raises TuningError if the file belongs to another device, or cannot be read or written.
    """
    backend = device.partition(":")[0]
    found = _earlier(path, model)
    for finding in findings:
        if finding.rounds:
            found[finding.parameter.name] = _entry(finding, commit, today)
    document = {
        "backend": backend,
        "device": model,
        "parameters": found,
        "values": {name: entry["value"] for name, entry in found.items() if entry["value"] != entry["default"]},
        "versions": _versions(environment, device),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise TuningError(msg) from error


def _earlier(path: Path, model: str) -> dict[str, Any]:
    """Entries of the file by parameter, without parameters that no longer exist."""
    if not path.exists():
        return {}
    read(path)
    held = json.loads(path.read_text(encoding="utf-8"))
    if held.get("device") != model:
        msg = f"{path} is of {held.get('device', 'an unnamed device')}, not of {model}"
        raise TuningError(msg)
    declared = {item.name for item in parameters()}
    return {name: entry for name, entry in held.get("parameters", {}).items() if name in declared}


def _entry(finding: TuningFinding, commit: str, today: date) -> dict[str, Any]:
    seen = finding.best or finding.nearest
    return {
        "value": finding.chosen,
        "default": finding.parameter.default,
        "best": None if seen is None else _tried(seen.value, seen.ratio, seen.interval),
        "cases": len(finding.cases),
        "rounds": finding.rounds,
        "commit": commit,
        "date": today.isoformat(),
    }


def _tried(value: int, ratio: float | None, interval: tuple[float, float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    rounded = [None if number is None else round(number, DIGITS) for number in (ratio, low, high)]
    return {"value": value, "ratio": rounded[0], "interval": rounded[1:]}


def _versions(environment: Environment, device: str) -> dict[str, str]:
    kept = {*PACKAGES, "python", f"{device}.driver"}
    return {name.removeprefix(f"{device}."): value for name, value in environment.soft.items() if name in kept}
