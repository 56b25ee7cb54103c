"""Protocol between a worker process and its parent: frozen dataclasses, each sent as one JSON line.

A request has an id that its process never used before. Each reply names that id, the trial of the request, and the
process that wrote it: a reply that differs in one of them answers another request (a kernel forked, or wrote to the
pipe) and raises `MismatchedReplyError`. Trials, limits and results are plain JSON, because the parent may be unable to
build the cases of the tree that a worker runs.

To add a request: a dataclass here, a handler in `serve.HANDLERS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from opgauge.harness.errors import WorkerError

Json = Mapping[str, Any]
EMPHASIS, MEASURE = "call on emphasized inputs", "measure"
SUCCESSION, IDLE, SINGLE_CALLS = "calls in succession", "pauses between calls", "single calls"
"""Phases of a trial that may compute a reference beside calling the kernel, as `Phase` names them."""


class MismatchedReplyError(WorkerError):
    """A line on a worker's pipe that does not reply to the current request."""


class StrayReplyError(MismatchedReplyError):
    """A second reply to an earlier request, for which the current trial is not to blame."""


class Address(NamedTuple):
    """Request that a message belongs to: its id, its trial (empty: none), and the worker's process."""

    request: int
    trial: str
    process: int


@dataclass(frozen=True, slots=True)
class RunTrial:
    """Call, check and measure a trial; replies: `Phase` as each begins, then `TrialResult`.

    Fields after `limits` are those of `Bench.run`. tuning: launch parameters by name, in force for this trial.
    memory: file for inputs and outputs on the CPU (see `shared_memory`).
    """

    trial: Json
    limits: Json
    block: int = 0
    cpu_fallback: bool = False
    trusted: Json | None = None
    with_digest: bool = False
    with_fingerprint: bool = False
    kept: str | None = None
    hold: bool = False
    reference_threads: int | None = None
    tuning: Mapping[str, int] | None = None
    memory: str | None = None
    extra_checks: bool = True
    late_checks: bool = False


@dataclass(frozen=True, slots=True)
class Interleave:
    """Sample resident implementations round-robin; replies: `Sampling` before each, then `InterleavedResults`."""

    implementations: tuple[str, ...]
    limits: Json


@dataclass(frozen=True, slots=True)
class SampleTrial:
    """Sample one resident implementation under `limits`; reply: `TrialResult` with those samples only.

    is_last: also check the outputs of the last timed call, and of one more call on poisoned outputs.
    """

    implementation: str
    limits: Json
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class MeasureCeilings:
    """Measure the achieved peaks of a device; reply: `Answer` with `Ceilings` as JSON."""

    device: str


@dataclass(frozen=True, slots=True)
class ProfileTrial:
    """List the device kernels of one call; reply: `Answer` with a `Profile`. The process times nothing afterwards."""

    trial: Json


@dataclass(frozen=True, slots=True)
class ListTunables:
    """Bind a trial; reply: `Answer` with {"names": tunables that binding reads} or {"failed": the reason}."""

    trial: Json


@dataclass(frozen=True, slots=True)
class TakeInventory:
    """List the cases in `paths` and all kernels of the tree; reply: `Answer`, or `InvalidCases`."""

    paths: tuple[str, ...]
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class CheckBuildable:
    """Build cases with the tree's ops; reply: `Answer` with a reason per case, empty for a case that can be built."""

    cases: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class DigestSources:
    """Digest the source code of a folder of `ops`; reply: `Answer`."""

    folder: str
    backend: str


@dataclass(frozen=True, slots=True)
class DigestCubins:
    """Digest the compiled CUDA code of a folder of `ops`; reply: `Answer`."""

    folder: str
    index: int


@dataclass(frozen=True, slots=True)
class NameModel:
    """Query the vendor's name of a device; reply: `Answer`."""

    device: str


@dataclass(frozen=True, slots=True)
class ListImported:
    """Query which of these modules the process has imported so far; reply: `Answer` with their names."""

    names: tuple[str, ...]


Request = (
    RunTrial
    | Interleave
    | SampleTrial
    | MeasureCeilings
    | ProfileTrial
    | ListTunables
    | TakeInventory
    | CheckBuildable
    | DigestSources
    | DigestCubins
    | NameModel
    | ListImported
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker accepts requests."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a trial begins."""

    phase: str


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Outcome of a trial: a `Result` as JSON."""

    result: Json


@dataclass(frozen=True, slots=True)
class Sampling:
    """An implementation is sampled next."""

    implementation: str


@dataclass(frozen=True, slots=True)
class InterleavedResults:
    """Results in the order of the request's implementations, as JSON."""

    results: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Plain JSON, in the form that the request's class describes."""

    answer: Any


@dataclass(frozen=True, slots=True)
class InvalidCases:
    """A case file has a mistake."""

    text: str


@dataclass(frozen=True, slots=True)
class IncompatibleTree:
    """The tree's `ops` lacks what the harness needs (see `contract`)."""

    reason: str


@dataclass(frozen=True, slots=True)
class HarnessFault:
    """The harness itself failed."""

    traceback: str


Reply = (
    Ready
    | Phase
    | TrialResult
    | Sampling
    | InterleavedResults
    | Answer
    | InvalidCases
    | IncompatibleTree
    | HarnessFault
)
_KINDS: dict[str, Any] = {kind.__name__: kind for union in (Request, Reply) for kind in union.__args__}


def trial_name(request: Request) -> str:
    """Case id, implementation and device of the trial of a request; empty without a trial."""
    trial = getattr(request, "trial", None)
    if trial is None:
        return str(getattr(request, "implementation", ""))
    return f"{trial['case'].get('id', '')} {trial['implementation']} {trial['device']}"


def in_words(request: Request) -> str:
    """The task that a request is named after."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(request).__name__).lower()


def encode(message: Request | Reply, address: Address) -> str:
    """A message as one line of JSON; raises ValueError for numbers that are not finite."""
    content = {item.name: getattr(message, item.name) for item in fields(message)}
    return json.dumps({"kind": type(message).__name__, "to": address, "content": content}, allow_nan=False) + "\n"


def decode(line: str | bytes) -> tuple[Any, Address]:
    """The message of a line and its address; raises MismatchedReplyError for anything but a message."""
    try:
        found = json.loads(line)
        return _KINDS[found["kind"]](**found["content"]), Address(*found["to"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = f"no message of the protocol: {bytes(line, 'utf-8')[:80]!r}" if isinstance(line, str) else repr(line[:80])
        raise MismatchedReplyError(msg) from error
