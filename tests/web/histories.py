"""Histories told by lists: a time or a status of each case in each run, None where a run leaves it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import uuid4
from zlib import crc32

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from opgauge.harness.result.submission import Submission
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.ops import find_op
from tests.web.dataset import GPU, HARD, START

History = Mapping[str, Sequence[float | str | None]]
"""Outcomes by case, one per run: microseconds, a status, or None."""


def case_of(name: str) -> Case:
    """A small case; its shape, and so its id, comes from the name."""
    rows = 1 + crc32(name.encode()) % 9973
    return Case("lerp", name, dict.fromkeys("xy", (rows, 64)), "float32", find_op("lerp").params(weight=0.5))


def add_history(
    store: Store,
    history: History,
    baseline: float | None = None,
    hard: Mapping[str, str] | None = None,
    first: datetime = START,
    **soft: str,
) -> list[str]:
    """Store a run a day, each of its own commit, from `first` on; gives their ids. Times vary by 0.4 %.

    baseline: time of the baseline of every case, None for no baseline.
    """
    noise, written = np.random.default_rng(5), []
    for number in range(max(map(len, history.values()))):
        when = first + timedelta(days=number)
        facts = {"commit": f"{when.timetuple().tm_yday:04x}" * 10, "branch": "main", **soft}
        results = [
            _result(case_of(name), implementation, outcome, noise)
            for name, outcomes in history.items()
            for implementation, outcome in (("optimized", outcomes[number]), ("baseline", baseline))
            if outcomes[number] is not None and outcome is not None
        ]
        environment = Environment(dict(hard or HARD), facts)
        run = Submission(str(uuid4()), when, when, "finished", "", environment, (), tuple(results))
        add_run(store.engine, run)
        written.append(run.id)
    return written


def _result(case: Case, implementation: str, outcome: float | str | None, noise: np.random.Generator) -> Result:
    trial = Trial(case, implementation, "cuda", GPU)
    if not isinstance(outcome, float | int):
        return Result(trial, Status(str(outcome)), "planted", bytes=1 << 20)
    middle = 1000 * outcome * float(noise.normal(1, 0.004))
    samples = tuple((middle * noise.normal(1, 0.01, 20)).tolist())
    check = Check(ok=True, max_abs_error=1e-6, max_rel_error=1e-6, worst=0.2)
    return Result(trial, Status.OK, bytes=1 << 20, check=check, measurement=Measurement(samples, "events 1", 3))
