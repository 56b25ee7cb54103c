"""Comparison of a submission with the stored run of its id: the same, a continuation, or other content."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from opgauge.harness.errors import StoreError
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Result
from opgauge.harness.result.submission import Submission
from opgauge.harness.store.result_rows import packed_samples
from opgauge.harness.store.tables import CaseRow, ResultRow, RunRow, SampleRow


class OtherRunError(StoreError):
    """A run of this id with other content is stored, and the new one does not continue it."""


def stored_run(connection: Connection, run_id: str) -> Any:
    """Row of the stored run with this id, None without one."""
    row = RunRow
    query = select(row.id, row.started, row.finished, row.status, row.project, row.submitter, row.digest)
    query = query.add_columns(row.environment, row.command)
    return connection.execute(query.where(row.uuid == run_id)).first()


def is_same(connection: Connection, stored: Any, run: Submission) -> bool:
    """Whether a stored run has the content of `run`; runs measured here have no digest, but results.

    A file that it was exported to calls it imported.
    """
    if stored.digest is not None:
        return bool(stored.digest == run.digest)
    if stored.started != run.started or run.status not in {stored.status, "imported"}:
        return False
    times = trial_times(connection, stored.id)
    return times == {
        trial_key(one): None if one.measurement is None else one.measurement.median_ns for one in run.results
    }


def check_continues(connection: Connection, stored: Any, run: Submission, *, may_continue: bool) -> None:
    """Raise OtherRunError unless `run` continues the stored one: interrupted, and with at least its valid results."""
    name = f"run {run.id} is stored with other content"
    if stored.status != "interrupted" or stored.started != run.started:
        raise OtherRunError(name)
    if stored.environment["hard"] != dict(run.environment.hard):
        msg = f"{name}: the hardware differs"
        raise OtherRunError(msg)
    if stored.environment["soft"].get("project", "") != run.environment.project:
        msg = f"{name}: it is of another project"
        raise OtherRunError(msg)
    if not may_continue:
        msg = f"{name}: another token sent it"
        raise OtherRunError(msg)
    kept = {trial_key(one) for one in run.results}
    lost = [key for key, time in trial_times(connection, stored.id).items() if time is not None and key not in kept]
    if lost:
        msg = f"{name}: {len(lost)} stored results are missing in it"
        raise OtherRunError(msg)


_TrialKey = tuple[str, str, str, int]


def trial_key(result: Result) -> _TrialKey:
    """Key of a result in its run."""
    trial = result.trial
    return *trial.key, result.block


def trial_times(connection: Connection, run_key: int) -> dict[_TrialKey, float | None]:
    """Median of each stored result of a run, by case id, implementation, device and process."""
    row = ResultRow
    query = select(CaseRow.case_id, row.implementation, row.device, row.block, row.median_ns)
    found = connection.execute(query.join(CaseRow, CaseRow.id == row.case_key).where(row.run_id == run_key))
    return {(case_id, name, device, block): time for case_id, name, device, block, time in found}


def is_part(connection: Connection, stored: Any, part: Submission) -> bool:
    """Whether a stored run has the content of `part`."""
    told = (part.started, part.finished, part.status, part.command, to_json(part.environment))
    if told != (stored.started, stored.finished, stored.status, stored.command, stored.environment):
        return False
    facts = _trial_facts(connection, stored.id)
    known = [(one, facts.get(trial_key(one))) for one in part.results]
    return all(found is not None and _is_stored(one, *found) for one, found in known)


def _trial_facts(connection: Connection, run_key: int) -> dict[_TrialKey, tuple[str, str, float | None, bytes | None]]:
    """Status, reason, median and packed samples of each stored result of a run."""
    row = ResultRow
    query = select(CaseRow.case_id, row.implementation, row.device, row.block, row.status, row.reason, row.median_ns)
    found = query.add_columns(SampleRow.samples_ns).join(CaseRow, CaseRow.id == row.case_key)
    found = found.outerjoin(SampleRow, SampleRow.result_id == row.id).where(row.run_id == run_key)
    facts: dict[_TrialKey, tuple[str, str, float | None, bytes | None]] = {}
    for case_id, name, device, block, *rest in connection.execute(found):
        status, reason, median_ns, samples = rest
        facts[case_id, name, device, block] = (status, reason, median_ns, samples)
    return facts


def _is_stored(one: Result, status: str, reason: str, median_ns: float | None, samples: bytes | None) -> bool:
    """Whether a result is the stored one; its samples may have been dropped."""
    sent = None if one.measurement is None else one.measurement.median_ns
    if (str(one.status), one.reason, sent) != (status, reason, median_ns):
        return False
    return samples is None or one.measurement is None or packed_samples(one.measurement)["samples_ns"] == samples
