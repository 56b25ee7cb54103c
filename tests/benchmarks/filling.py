"""A database as large as a team's after years: runs by the thousand, each with hundreds of results and raw samples.

It is written past the store, with SQLite's own interface: a million results in a minute or so.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opgauge.harness import json_text
from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store
from opgauge.harness.store.result_rows import result_values
from opgauge.harness.store.store import case_entry

IMPLEMENTATIONS = ("baseline", "optimized", "torch", "torch_compile")
SPEEDS = (4.0, 1.0, 1.3, 1.1)
SAMPLES = 40
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
HOSTS = (
    ("cuda:0", {"cuda:0.model": "NVIDIA H200", "cuda:0.mig": "off", "cuda:0.driver_major": "580"}),
    ("cuda:0", {"cuda:0.model": "Tesla V100", "cuda:0.mig": "off", "cuda:0.driver_major": "535"}),
    ("cpu", {"cpu.model": "AMD EPYC 9454", "cpu.threads": "16"}),
)
_RESULT = (
    "INSERT INTO result (id, run_id, case_key, implementation, backend, device, block, status, reason, median_ns, "
    "low_ns, high_ns, bytes, flops, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def fill(path: Path, runs: int, trials: int) -> None:
    """Write `runs` runs of `trials` results each into a new database."""
    cases = some_cases(-(-trials // len(IMPLEMENTATIONS)))
    with Store.open(f"sqlite:///{path}"):
        pass
    noise = np.random.default_rng(3)
    with sqlite3.connect(path, isolation_level=None) as connection:
        for pragma in ("journal_mode=DELETE", "journal_mode=OFF", "synchronous=OFF", "cache_size=-200000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        keys = [_enter_case(connection, case) for case in cases]
        levels = noise.lognormal(11, 1.2, len(cases))
        for number in range(runs):
            _enter_run(connection, number, cases, keys, _times(number, levels, noise), trials)
        connection.execute("COMMIT")
    connection.close()


def some_cases(count: int) -> list[Case]:
    """So many of the cases that there are, of every op."""
    known = load_cases([ROOT / "cases"])
    return [known[place * len(known) // count] for place in range(min(count, len(known)))]


def _times(number: int, levels: NDArray[np.float64], noise: np.random.Generator) -> NDArray[np.float64]:
    """Samples by case and implementation; now and then a case gets slower for good, or faster again."""
    steps = 1 + 0.1 * ((number + 17 * np.arange(levels.size)) % 400 > 380)
    middle = levels[:, None] * np.array(SPEEDS) * np.stack([np.ones_like(steps), steps, *[np.ones_like(steps)] * 2], 1)
    drift = noise.normal(1, 0.004, middle.shape)[..., None]
    found: NDArray[np.float64] = middle[..., None] * drift * noise.normal(1, 0.01, (*middle.shape, SAMPLES))
    return found


def _enter_case(connection: sqlite3.Connection, case: Case) -> int:
    digest, data = case_entry(case)
    columns = (case.id, digest, case.op, case.dtype, json.dumps(data))
    insert = 'INSERT INTO "case" (case_id, digest, op, dtype, data) VALUES (?, ?, ?, ?, ?)'
    return int(connection.execute(insert, columns).lastrowid or 0)


def _enter_run(
    connection: sqlite3.Connection,
    number: int,
    cases: Sequence[Case],
    keys: Sequence[int],
    times: NDArray[np.float64],
    trials: int,
) -> None:
    device, hard = HOSTS[number % len(HOSTS)]
    started = FIRST + timedelta(minutes=45 * number)
    commit = f"{number // len(HOSTS):08x}" * 5
    soft = {"commit": commit, "branch": "main", "host": f"gpu-{number % len(HOSTS)}", "python": "3.11.7"}
    environment = json.dumps(to_json(Environment(hard, soft)))
    text, ended = f"{started:%Y-%m-%d %H:%M:%S.%f}", f"{started + timedelta(minutes=9):%Y-%m-%d %H:%M:%S.%f}"
    columns = (str(uuid.UUID(int=number + 1)), text, ended, "finished", commit, "opgauge run --tag gate", environment)
    insert = 'INSERT INTO run (uuid, started, finished, status, "commit", command, environment) VALUES '
    run = connection.execute(f"{insert}(?, ?, ?, ?, ?, ?, ?)", columns).lastrowid
    reached = json.dumps(to_json(Ceilings(device, 4100.0, 3900.0, {"float32": 52000.0}, 2100.0)))
    connection.execute("INSERT INTO ceiling (run_id, device, data) VALUES (?, ?, ?)", (run, device, reached))
    first = number * trials + 1
    rows, samples = [], []
    for place in range(trials):
        which, made = divmod(place, len(IMPLEMENTATIONS))
        values = times[which, made]
        fails = (number * 31 + place) % 977 == 0
        row = _row(cases[which], IMPLEMENTATIONS[made], device, values, fails=fails)
        rows.append((first + place, run, keys[which], *row))
        if not fails:
            samples.append((first + place, values.tobytes(), b"", b""))
    connection.executemany(_RESULT, rows)
    connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?)", samples)


_DATA: dict[str, dict[str, Any]] = {}


def _row(case: Case, made: str, device: str, values: NDArray[np.float64], *, fails: bool) -> tuple[Any, ...]:
    """The columns that follow the keys; what does not vary is made once."""
    key = f"{case.id} {made} {device} {fails}"
    if key not in _DATA:
        _DATA[key] = result_values(_result(case, made, device, fails=fails))
    known = dict(_DATA[key])
    data = dict(known.pop("data"))
    if not fails:
        ordered = np.sort(values)
        data["quantiles_ns"] = [*ordered[[0, SAMPLES // 4, -SAMPLES // 4]].tolist(), SAMPLES]
        known["median_ns"] = float(np.median(values))
        known["low_ns"], known["high_ns"] = data["quantiles_ns"][1:3]
    return (*known.values(), json_text.write_compact(data).decode())


def _result(case: Case, made: str, device: str, *, fails: bool) -> Result:
    trial = Trial(case, made, device.partition(":")[0], device)
    if fails:
        return Result(trial, Status.ERROR, "the kernel failed", extra={"phase": "first call", "log": "…"})
    check = Check(ok=True, max_abs_error=1e-6, max_rel_error=1e-6, worst=0.21)
    kernels = [{"name": f"{case.op}_rows<float, 4>", "launches": 1, "time_ns": 1000.0}]
    extra = {"phases_s": {"inputs": 0.1, "reference": 0.2}, "repeatable": True, "kernels": kernels}
    measurement = Measurement((1.0,), "events 1", 3, hot_ns=1000.0, peak_bytes=4096)
    return Result(trial, Status.OK, check=check, measurement=measurement, bytes=1 << 20, flops=1 << 18, extra=extra)
