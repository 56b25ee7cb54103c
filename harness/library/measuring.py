"""`opgauge.run`: measure cases from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opgauge.harness.case.file import load_cases
from opgauge.harness.case.filters import require_matches
from opgauge.harness.counting import counted
from opgauge.harness.errors import NothingError
from opgauge.harness.measure import Limits
from opgauge.harness.project import active
from opgauge.harness.result.result import Result
from opgauge.harness.run.environment import capture
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.runner import plan
from opgauge.harness.run.runner import run as run_trials
from opgauge.harness.settings import ROOT, load_settings
from opgauge.harness.store import Store
from opgauge.harness.worker.interleave import TURNS


def run(
    cases: Path | str | Sequence[Path | str] = (),
    *,
    op: str | None = None,
    tag: str | None = None,
    dtype: str | None = None,
    implementations: Sequence[str] | None = None,
    devices: Sequence[str] = ("cpu",),
    budget_s: float | None = None,
    db: str | None = None,
) -> list[Result]:
    """Measure and check cases in worker processes, and return a `Result` for each case, implementation and device.

    cases: case files and folders; by default those of the project in the current folder, else the shipped ones. Ops
    are those of the project: what this process alone has registered, workers do not know. op, tag, dtype: keep cases
    that have them. budget_s: seconds of sampling per result. db: database URL or SQLite file to store the run in; None
    stores nothing. Raises FilterError for a value that no case has, NothingError
    where nothing is left, CaseFileError, BackendError.
    """
    project = active.active() or active.choose()
    active.load()
    own = project.cases if project is not None and project.cases else (ROOT / "cases",)
    listed = [cases] if isinstance(cases, Path | str) else list(cases)
    loaded = load_cases([Path(one) for one in listed] or list(own))
    given = {"op": [op] if op else [], "dtype": [dtype] if dtype else [], "tag": [tag] if tag else []}
    tags = {one for case in loaded for one in case.tags}
    require_matches(given, {"op": [case.op for case in loaded], "dtype": [case.dtype for case in loaded], "tag": tags})
    chosen = [
        case
        for case in loaded
        if op in {None, case.op} and dtype in {None, case.dtype} and (tag is None or tag in case.tags)
    ]
    trials = plan(chosen, implementations=implementations, devices=devices)
    if not trials:
        msg = f"none of {counted(len(chosen), 'case')} has an implementation on {', '.join(devices)}"
        raise NothingError(msg)
    settings = load_settings()
    limits = Limits(budget_s=budget_s or settings.budget_s, turns=TURNS)
    with LocalExecutor(limits=limits, timeout_s=settings.timeout_s, threads=settings.threads) as executor:
        found = list(run_trials(trials, executor))
    if db is not None:
        with Store.open(db if "://" in db else f"sqlite:///{db}") as store:
            stored = store.begin_run(
                capture(devices, cases=chosen, threads=settings.threads), command="opgauge.run(...)"
            )
            for result in found:
                store.add_result(stored, result)
            store.finish_run(stored)
    return found
