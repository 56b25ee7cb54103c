"""Functions that run in a cluster's worker process: whole cases on its device, references on its CPUs.

A member owns one device (`CUDA_VISIBLE_DEVICES` names it) and measures one case at a time, in a child process of its
own, as `opgauge run` does: a kernel that crashes ends that child, not the member.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opgauge.harness.case.case import Case
from opgauge.harness.case.casejson import case_from_json
from opgauge.harness.errors import HarnessError
from opgauge.harness.measure import Limits
from opgauge.harness.project import active
from opgauge.harness.project.configuration import Project
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Trial
from opgauge.harness.run.compiling import SHARE, case_bytes
from opgauge.harness.run.environment import capture, free_memory_bytes
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.peaks import AchievedPeaks
from opgauge.harness.settings import ROOT
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.kept import is_kept, keep_expected, keep_values
from opgauge.harness.worker.verify import expect

Json = Mapping[str, Any]
SUFFIXES = (".py", ".cu", ".cuh")
"""Suffixes of source files."""
FOLDERS = ("harness", "ops")
"""Folders whose source decides what is measured, and how."""
REFERENCE_CPUS = 4
"""CPUs per member that computes references."""


class VersionMismatchError(HarnessError):
    """A member of the cluster runs other code than the process that plans."""

    exit_code = 2


@cache
def code_digest() -> str:
    """Digest of this process's own harness and ops; members with another digest would measure something else."""
    total = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def identity(device: str) -> dict[str, Any]:
    """Host, process, code and environment of this member, as plain JSON."""
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "code": code_digest(),
        "environment": _environment(device),
    }


@dataclass(frozen=True, slots=True)
class PlanningState:
    """State that a member must share with the process that plans: the digest of its code, and the project."""

    code: str
    project: Project | None


def planning_state() -> PlanningState:
    """The state of this process, to be sent with each task."""
    return PlanningState(code_digest(), active.active())


def call(
    shared: bool | None,  # noqa: FBT001  the value of another task
    state: PlanningState,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    more: Mapping[str, Any],
) -> Any:
    """Call a function for the process that plans.

    shared: whether `compute_reference` stored the reference of the task's case; None: it was not requested. Raises
    VersionMismatchError where the code differs, and what the function raises.
    """
    if state.code != code_digest():
        msg = (
            f"{socket.gethostname()} runs code {code_digest()}, the planning process {state.code}: "
            "install the same version"
        )
        raise VersionMismatchError(msg)
    if state.project != active.active():
        active.use(state.project)
    active.load()
    return function(*arguments, **more, **({} if shared is None else {"shared": shared}))


def run_case(
    trials: Sequence[Json],
    limits: Json,
    timeout_s: float,
    *,
    block: int = 0,
    ceilings: bool = False,
    fields: Sequence[Mapping[str, Any]] = (),
    shared: bool = False,
) -> dict[str, Any]:
    """Results of a case's trials, one after the other on this member's device, with `identity`.

    block: number of the process that measures; each has another. ceilings: measure the peaks that the device achieves,
    once, and judge all times by them. fields: further request fields of each trial. shared: load inputs and reference
    from this host's folder.
    """
    measuring = _measuring(timeout_s)
    executor, peaks = measuring.in_process(block), measuring.peaks
    executor.limits = from_json(Limits, limits)
    more = {"kept": str(shared_folder())} if shared else {}
    built = [from_json(Trial, trial) for trial in trials]
    asked = dict(zip((trial.key for trial in built), fields, strict=False))
    device = built[0].device
    if ceilings:
        peaks.measure_once(device)

    def ask(trial: Trial) -> Mapping[str, Any]:
        return {**asked.get(trial.key, {}), **more}

    results = [to_json(peaks.judge(result)) for result in executor.run(built, block=block, ask=ask)]
    _forget(built[0].case.id)
    reached = peaks.known.get(device)
    return {"results": results, "ceilings": reached and to_json(reached), **identity(device)}


def dask_setup(_worker: object) -> None:
    """Leave Ctrl-C, which a terminal sends to all its processes, to the process that started this member."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def compute_reference(case: Json) -> bool:
    """Store inputs and reference of a case in this host's folder; returns whether they are there.

    A reference that fails here fails again where the case is measured, and is reported there.
    """
    built, folder = case_from_json(case), shared_folder()
    with suppress(MemoryError, ArithmeticError, ValueError, OSError), _memory_turn(built, folder):
        if not is_kept(built, folder):
            inputs = make_inputs(built)
            keep_values(built, inputs.values, folder)
            keep_expected(built, expect(built, inputs, threads=1), folder)
    return is_kept(built, folder)


@contextmanager
def _memory_turn(case: Case, folder: Path) -> Iterator[None]:
    """Context of a reference: one at a time on this host, if it needs more than a member's share of the memory."""
    if case_bytes(case) <= SHARE * free_memory_bytes() / reference_count():
        yield
        return
    with (folder / "large.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def reference_count() -> int:
    """Members of this host that compute references, unless their number is given."""
    return max(1, len(os.sched_getaffinity(0)) // REFERENCE_CPUS)


def shared_folder() -> Path:
    """Folder of inputs and references that the members of this host share, for this user alone."""
    folder = Path(tempfile.gettempdir()) / f"opgauge-cluster-{os.getuid()}-{code_digest()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class _Measuring:
    """The child process in which cases run, the number of that process, and the peaks of its device."""

    def __init__(self, timeout_s: float) -> None:
        self.executor = LocalExecutor(timeout_s=timeout_s)
        self.peaks = AchievedPeaks(self.executor)
        self._block = 0

    def in_process(self, block: int) -> LocalExecutor:
        """The executor, with a new child process if the number is another."""
        if block != self._block:
            self.executor.renew()
            self._block = block
        return self.executor


def _measuring(timeout_s: float) -> _Measuring:
    if timeout_s not in _MEASURING:
        _MEASURING[timeout_s] = _Measuring(timeout_s)
    return _MEASURING[timeout_s]


def close() -> None:
    """End the child processes in which cases run; the next case starts another."""
    while _MEASURING:
        _MEASURING.popitem()[1].executor.close()


_MEASURING: dict[float, _Measuring] = {}
"""Child processes by the seconds that a trial may take."""


@cache
def _environment(device: str) -> dict[str, Any]:
    return to_json(capture([device]))


def _forget(case: str) -> None:
    for file in shared_folder().glob(f"{case}*"):
        file.unlink(missing_ok=True)
