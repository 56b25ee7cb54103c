"""Reader of a whole run as JSON, which `opgauge export --samples` writes and `opgauge push` sends.

Reading is as strict as running: cases follow the rules of case files, every field has its type, and figures must be
possible.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from opgauge.harness import json_text
from opgauge.harness.case.case import Case
from opgauge.harness.case.casejson import case_from_json, stored_case
from opgauge.harness.case.hint import did_you_mean, show
from opgauge.harness.errors import CaseError, HarnessError
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.figures import as_text, check_ceilings, check_figures, check_size
from opgauge.harness.result.record_json import from_json
from opgauge.harness.result.result import Environment, Result, Trial
from opgauge.harness.result.strict import SubmissionError, check_plain, check_record, check_texts, read_record

FORMAT = 1
"""Version of the format."""
BODY = "the text"
"""Name of the whole text in messages."""
STATUSES = ("finished", "interrupted", "imported")
"""Statuses of a run that can be submitted."""
RESULT_LIMIT = 100_000
"""Most results of one run."""
ENTRY_LIMIT = 2_000
"""Most entries of an environment, and most ceilings of a run."""
CASE_BYTES = ENVIRONMENT_BYTES = 64 << 10
"""Most characters of an environment."""
CONTAINER_LIMIT = 1_000_000
"""Most brackets in the text of a run."""
_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_DEVICE = re.compile(r"(cpu|cuda:[0-9]{1,4})")
_TOP = ("opgauge", "run", "ceilings", "results")
_HEAD = ("id", "started", "finished", "status", "command", "environment")
NAME_LENGTH, COMMIT_LENGTH = 64, 64
"""Most characters of the name of an implementation, and of a commit."""
AHEAD = timedelta(days=1)
"""Tolerance for clocks of other machines that are ahead."""
SET_BACK = timedelta(hours=1)
"""Longest time by which a clock may have been set back during a run."""
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
"""Earliest start of a run; databases and time zones mishandle the year 1."""


@dataclass(frozen=True)
class Submission:
    """A run with its results, as another machine sends it. started, finished: moments with a time zone.

    head_digest, result_digests: SHA-256 of the run without its results, and of each result, as sent.
    """

    id: str
    started: datetime
    finished: datetime | None
    status: str
    command: str
    environment: Environment
    ceilings: Sequence[Ceilings]
    results: Sequence[Result]
    head_digest: bytes = b""
    result_digests: tuple[bytes, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the content: a run has the same hash whether it is sent at once or in parts."""
        return hashlib.sha256(self.head_digest + b"".join(self.result_digests)).hexdigest()


def parse(text: str | bytes) -> Any:
    """Parse JSON without NaN, lone surrogates or unbounded nesting; a byte order mark is skipped.

    Raises SubmissionError.
    """
    body = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if body.startswith(BOM_UTF8):
        return parse(body.removeprefix(BOM_UTF8))
    try:
        if body.count(b"[") + body.count(b"{") > CONTAINER_LIMIT:
            raise SubmissionError(BODY, "too many brackets for a run")
        data = _parse(body, text)
    except RecursionError as error:
        raise SubmissionError(BODY, "nested too deeply") from error
    except UnicodeDecodeError as error:
        raise SubmissionError(BODY, "no UTF-8") from error
    except json.JSONDecodeError as error:
        raise SubmissionError(BODY, f"no JSON: {error}") from error
    except ValueError as error:
        raise SubmissionError(BODY, str(error)) from error
    if _ESCAPE.search(body):
        check_texts(data)
    return data


def _parse(body: bytes, text: str | bytes) -> Any:
    try:
        return json_text.read_strictly(body)
    except ValueError:
        # Python's own parser accepts slightly more, and its messages are clearer
        whole = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(whole, parse_constant=_no_constant)


def read_submission(data: Any) -> Submission:
    """The run in the JSON of `harness.report.export.whole_run`. Raises SubmissionError or CaseError with the field."""
    try:
        return _read(data)
    except HarnessError:
        raise
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        msg = f"it is not a run: {type(error).__name__}: {error}"
        raise SubmissionError(BODY, msg[:1000]) from error


def read_run_id(value: Any) -> str:
    """A run's id: a UUID, in its usual form. Raises SubmissionError."""
    try:
        found = str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError) as error:
        raise SubmissionError("run.id", f"should be a UUID, not {show(value)}") from error
    if found != value:
        raise SubmissionError("run.id", f"should be written {found}, not {show(value)}")
    return found


def join(parts: Sequence[Submission]) -> Submission:
    """One run from its parts, in order; the ceilings are those of the first.

    Raises SubmissionError for parts that overlap, or that have different heads and so are of different runs.
    """
    for number, part in enumerate(parts):
        for name in ("id", "started", "finished", "status", "command", "environment"):
            if getattr(part, name) != getattr(parts[0], name):
                field, text = f"run.{name}", f"differs between part 0 and part {number}"
                raise SubmissionError(field, text)
    results = [result for part in parts for result in part.results]
    if len(results) > RESULT_LIMIT:
        raise SubmissionError("results", f"{len(results)} of them; at most {RESULT_LIMIT} are taken")
    _check_distinct(results)
    digests = tuple(digest for part in parts for digest in part.result_digests)
    return replace(parts[0], results=results, result_digests=digests)


def _read(data: Any) -> Submission:
    top = _mapping(data, "the run", _TOP)
    if top.get("opgauge") != FORMAT:
        raise SubmissionError("opgauge", f"format {show(top.get('opgauge'))}; this opgauge reads {FORMAT}")
    head = _mapping(top.get("run"), "run", _HEAD)
    listed = _list(top, "results", RESULT_LIMIT)
    status, command = head.get("status"), head.get("command", "")
    if status not in STATUSES:
        raise SubmissionError("run.status", f"{show(status)} is none of {', '.join(STATUSES)}")
    if not isinstance(command, str) or len(command) > 10_000:
        raise SubmissionError("run.command", "should be text of at most 10,000 characters")
    results = [_read_result(item, f"results[{index}]") for index, item in enumerate(listed)]
    _check_distinct(results)
    started = _moment(head.get("started"), "run.started")
    return Submission(
        id=read_run_id(head.get("id")),
        started=started,
        finished=None if head.get("finished") is None else _end(head["finished"], started),
        status=status,
        command=command,
        environment=_environment(head.get("environment")),
        ceilings=_ceilings(_list(top, "ceilings", ENTRY_LIMIT)),
        results=results,
        head_digest=_digest([head, top["ceilings"]]),
        result_digests=tuple(_digest(item) for item in listed),
    )


def _digest(data: Any) -> bytes:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def _read_result(data: Any, path: str) -> Result:
    check_record(Result, data, path)
    check_size(data, path)
    rest = dict(data)
    trial = dict(rest.pop("trial"))
    case = _case(trial.pop("case"), f"{path}.trial.case")
    found = from_json(Result, rest, trial=from_json(Trial, trial, case=case))
    _check_trial(found.trial, path)
    check_figures(found, path)
    return found


def _case(data: Mapping[str, Any], path: str) -> Case:
    text = json_text.write(data)
    if 2 * len(text) > CASE_BYTES:
        text = as_text(data)
    if len(text) > CASE_BYTES:
        raise SubmissionError(path, f"has {len(text)} characters; at most {CASE_BYTES} are taken")
    try:
        return _read_case(text)
    except (CaseError, SubmissionError) as error:
        raise SubmissionError(path, str(error)) from error


@lru_cache(maxsize=2_000)
def _read_case(text: str) -> Case:
    """The case in a JSON text, cached: cases recur in every run, and reading one takes longer than reading a result."""
    data = json.loads(text)
    check_plain(data, "it")
    try:
        return case_from_json(data)
    except CaseError as error:
        found = stored_case(data) if error.path == "op" else None  # an op that this process does not know
        if found is None or not found.is_consistent:
            raise
        return found


def _check_trial(trial: Trial, path: str) -> None:
    if not _DEVICE.fullmatch(trial.device):
        raise SubmissionError(path, f"trial.device should be cpu or cuda:N, not {show(trial.device)}")
    if trial.backend != trial.device.partition(":")[0]:
        raise SubmissionError(path, f"trial.backend {show(trial.backend)} is not that of {trial.device}")
    if not 0 < len(trial.implementation) <= NAME_LENGTH:
        raise SubmissionError(path, f"trial.implementation should have 1 to {NAME_LENGTH} characters")


def _check_distinct(results: Sequence[Result]) -> None:
    seen = set()
    for result in results:
        trial = result.trial
        key = (trial.case.id, trial.case.name, trial.implementation, trial.device, result.block)
        if key in seen:
            raise SubmissionError("results", f"{trial.case.name} {trial.implementation} on {trial.device} occurs twice")
        seen.add(key)


def _environment(data: Any) -> Environment:
    found = read_record(Environment, data, "run.environment")
    if len(found.hard) + len(found.soft) > ENTRY_LIMIT:
        raise SubmissionError("run.environment", f"has more than {ENTRY_LIMIT} entries")
    size = sum(len(key) + len(text) for part in (found.hard, found.soft) for key, text in part.items())
    if size > ENVIRONMENT_BYTES:
        raise SubmissionError("run.environment", f"has {size} characters; at most {ENVIRONMENT_BYTES} are taken")
    if len(found.commit) > COMMIT_LENGTH:
        raise SubmissionError("run.environment.soft.commit", f"has more than {COMMIT_LENGTH} characters")
    return found


def _ceilings(data: Sequence[Any]) -> list[Ceilings]:
    found = [read_record(Ceilings, item, f"ceilings[{index}]") for index, item in enumerate(data)]
    for item in found:
        if not _DEVICE.fullmatch(item.device):
            raise SubmissionError("ceilings", f"device should be cpu or cuda:N, not {show(item.device)}")
    check_ceilings(found)
    return found


def _moment(value: Any, path: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise SubmissionError(path, f"should be a moment as 2026-01-31T12:00:00+00:00, not {show(value)}") from error
    if found.tzinfo is None:
        raise SubmissionError(path, "has no time zone")
    if found > datetime.now(UTC) + AHEAD:
        raise SubmissionError(path, f"{show(value)} is in the future")
    if found < EARLIEST:
        raise SubmissionError(path, f"{show(value)} is before {EARLIEST.year}")
    return found.astimezone(UTC)


def _end(value: Any, started: datetime) -> datetime:
    found = _moment(value, "run.finished")
    if found < started - SET_BACK:
        raise SubmissionError("run.finished", f"{show(value)} is before its start")
    return found


def _mapping(data: Any, path: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise SubmissionError(path, f"should be a mapping, not {show(data)}")
    for key in data:
        if key not in known:
            raise SubmissionError(path, f"unknown key {key[:60]!r}{did_you_mean(key[:60], known)}")
    return data


def _list(top: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    found = top.get(name)
    if not isinstance(found, list):
        raise SubmissionError(name, f"should be a list, not {show(found)}")
    if len(found) > limit:
        raise SubmissionError(name, f"{len(found)} items; at most {limit} are taken")
    return found


def _no_constant(name: str) -> Any:
    raise SubmissionError(BODY, f"no JSON: {name} is no number of JSON")
