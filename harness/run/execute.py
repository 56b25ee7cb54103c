"""Executors: run trials in worker processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self

from opgauge.harness.case.case import Case
from opgauge.harness.errors import CaseError, WorkerError
from opgauge.harness.measure import Limits
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.failure import classify_death
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Profile, Result, Status, Trial
from opgauge.harness.run.worker_process import PRELOADED, Worker, worker_options
from opgauge.harness.settings import child_environment, tuning_file
from opgauge.harness.worker import protocol
from opgauge.harness.worker.interleave import first_turn, joined
from opgauge.ops import TuningError, find_op
from opgauge.ops._core.op import tensor_bytes
from opgauge.ops._core.tuning import read as read_tuning

REFERENCE_PHASES = (protocol.EMPHASIS, protocol.MEASURE, protocol.SUCCESSION, protocol.IDLE, protocol.SINGLE_CALLS)
"""Phases after the first that compute a reference: they may take its time besides the kernel's."""
DOUBTFUL = (Status.ERROR, Status.OUT_OF_MEMORY)
"""Statuses after which a CUDA context may be unusable."""
DOUBTS = 2
"""Repeats of a trial that is wrong by its times alone, or that a thread of an earlier trial has disturbed."""
HELD_BYTES = 256 << 20
"""Size of a case above which its implementations are not interleaved, since they would not fit in memory together."""


Ask = Callable[[Trial], Mapping[str, Any]]


def ask_nothing(_: Trial) -> Mapping[str, Any]:
    """No further request fields."""
    return {}


def takes_turns(case: Case, device: str, limits: Limits) -> bool:
    """Whether the implementations of a case are interleaved: on a CPU, which others use too, if all fit in memory."""
    nbytes = tensor_bytes(case.resolved.inputs) + tensor_bytes(case.resolved.outputs)
    return limits.turns > 1 and device == "cpu" and nbytes <= HELD_BYTES


def _is_wrong_by_time(result: Mapping[str, Any]) -> bool:
    """Whether a plain result is wrong only by the times of single calls, with all outputs valid."""
    phase = result.get("extra", {}).get("phase")
    return result["status"] == Status.WRONG and phase == protocol.SINGLE_CALLS and not result.get("check")


class Executor(Protocol):
    """Runs trials and yields each result as soon as it is available."""

    def run(self, trials: Iterable[Trial], *, block: int = 0, ask: Ask = ask_nothing) -> Iterator[Result]:
        """Results in order of trials. ask: further request fields of each trial (see LocalExecutor.run_plain)."""

    def ceilings(self, device: str) -> Ceilings:
        """Achieved peaks of `device`, measured where the trials run."""


class LocalExecutor:
    """Runs trials in a worker process of this machine, which is replaced if it dies.

    limits: limits of sampling. timeout_s: for a kernel's part of a trial. reference_timeout_s: for inputs and the
    reference (None: the same). ops_tree: folder whose `ops` the workers import. threads: CPUs that they use (None:
    all). memory_bytes: address space they may use (None: no limit; CUDA reserves far more than it uses). preload:
    modules they import while the parent continues. cpu_fallback: run the CPU's kernel if a device has none.
    environment: variables that they get in addition to this process's. worker: the first one, if the caller started
    it earlier. end: time by `time.monotonic` at which a busy worker raises TimeIsUpError; None: never.

    The worker starts at once, so that it warms up while the caller continues. Use the executor in a `with`
    statement: at its end no process is left. Raises TuningError if `OPGAUGE_TUNING` names an unreadable file. On
    Linux workers die with the thread that created the executor, so create it in a thread that lasts.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        timeout_s: float = 120.0,
        reference_timeout_s: float | None = None,
        ops_tree: Path | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        preload: Sequence[str] = PRELOADED,
        cpu_fallback: bool = False,
        environment: Mapping[str, str] | None = None,
        worker: Worker | None = None,
        end: float | None = None,
    ) -> None:
        named = tuning_file()
        try:
            if named is not None:
                read_tuning(named)
        except TuningError:
            if worker is not None:
                worker.kill()
            raise
        self.limits = limits or Limits()
        self.timeout_s = timeout_s
        self.reference_timeout_s = reference_timeout_s or timeout_s
        self.cpu_fallback = cpu_fallback
        self._environment = dict(environment or {})
        self._options = worker_options(ops_tree, threads, memory_bytes, preload)
        self._threads = threads
        self._end = float("inf") if end is None else end
        self._worker: Worker | None = worker or self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def renew(self) -> None:
        """Start a new process for the following trials."""
        self._replace()

    def interrupt(self) -> None:
        """Kill the worker, from any thread: the trial that runs in it fails at once."""
        worker = self._worker
        if worker is not None:
            worker.interrupt()

    def close(self) -> None:
        """End the worker and its child processes."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def run(self, trials: Iterable[Trial], *, block: int = 0, ask: Ask = ask_nothing) -> Iterator[Result]:
        """Results in order of trials; a trial is sent when the previous result has been taken.

        Interleaved trials of a case (see harness.worker.interleave) are yielded after the last round; a single
        one is not interleaved. ask: further request fields of each trial (see run_plain). Raises WorkerError if
        the harness, not a kernel, fails.
        """
        for (in_turns, *_), group in groupby(trials, self._group):
            same_case = list(group)
            if in_turns and len(same_case) > 1:
                yield from self._run_in_turns(same_case, block, ask)
            else:
                for trial in same_case:
                    yield self._run_one(trial, block, ask(trial))

    def run_plain(self, trial: Mapping[str, Any], *, block: int = 0, **more: Any) -> dict[str, Any]:
        """Run a trial in plain JSON and return its plain result, for trees whose cases this process cannot build.

        more: request fields `trusted`, `with_digest`, `with_fingerprint`, `kept`, `hold`, `reference_threads`,
        `memory`, `extra_checks`, `late_checks` (see harness.worker.bench.Bench.run), `limits`, and `tuning`: tunables
        by name, in force for this trial. The result of a lost worker has no work, since only the tree can compute it.
        """
        given = {"limits": vars(self.limits), "cpu_fallback": self.cpu_fallback, **more}
        request = protocol.RunTrial(trial, block=block, **given)
        found = self._measured(request)
        for _ in range(DOUBTS):
            if not (_is_wrong_by_time(found) or found.get("extra", {}).get("disturbed")):
                break
            found = self._measured(request)
        return found

    def _measured(self, request: protocol.RunTrial) -> dict[str, Any]:
        """The worker's result, or a result that describes the lost worker."""
        worker = self.ready()
        worker.send(request)
        phase = ""
        deadline = monotonic() + self.reference_timeout_s
        while True:
            try:
                reply = worker.receive(deadline)
            except protocol.MismatchedReplyError as error:
                return {"trial": request.trial, "block": request.block, **self._confused(worker, phase, error)}
            if reply is None:
                return {"trial": request.trial, "block": request.block, **self._lost(worker, phase)}
            if isinstance(reply, protocol.TrialResult):
                result = dict(reply.result)
                is_doubtful = result["status"] in DOUBTFUL and request.trial["backend"] != "cpu"
                if is_doubtful or result["extra"].get("unfit"):
                    self._replace()
                return result
            had_reference, phase = phase in REFERENCE_PHASES, reply.phase
            if phase in REFERENCE_PHASES:
                deadline = monotonic() + self.reference_timeout_s + self.timeout_s
            elif phase == "allocate" or had_reference:
                deadline = monotonic() + self.timeout_s

    def ask(self, request: protocol.Request, *, timeout_s: float | None = None) -> Any:
        """The worker's answer to a request other than a trial.

        Raises CaseError for mistakes in case files, WorkerError if no answer arrives in time.
        """
        worker, limit_s = self.ready(), timeout_s or self.timeout_s
        worker.send(request)
        reply = worker.receive(monotonic() + limit_s)
        if reply is None:
            self.close()
            msg = f"could not {protocol.in_words(request)}: {worker.log() or f'no answer after {limit_s:g} s'}"
            raise WorkerError(msg)
        if isinstance(reply, protocol.InvalidCases):
            raise CaseError(reply.text)
        return reply.answer

    def sample(self, held: Mapping[str, Any], limits: Limits, *, is_last: bool = False) -> dict[str, Any]:
        """Further samples of a trial that `run_plain` left resident, as plain JSON; see `Bench.sample`."""
        worker = self.ready()
        worker.send(protocol.SampleTrial(held["implementation"], vars(limits), is_last=is_last))
        try:
            reply = worker.receive(monotonic() + self.timeout_s)
        except protocol.MismatchedReplyError as error:
            return {"trial": held, **self._confused(worker, protocol.MEASURE, error)}
        if reply is None:
            return {"trial": held, **self._lost(worker, protocol.MEASURE)}
        result = dict(reply.result)
        if result["extra"].get("unfit"):
            self._replace()
        return result

    def pin(self, cpus: Collection[int]) -> None:
        """Restrict the worker to these CPUs."""
        self.ready().pin(cpus)

    def cpu_s(self) -> float:
        """CPU time that the worker has used, in seconds."""
        return self.ready().cpu_s()

    def profile(self, trials: Iterable[Trial]) -> Iterator[Profile]:
        """The kernel list of each trial. Use an executor that measures nothing: a profiler disturbs timings."""
        for trial in trials:
            yield self.profile_plain(to_json(trial))

    def profile_plain(self, trial: Mapping[str, Any]) -> Profile:
        """The kernel list of a trial in plain JSON."""
        worker = self.ready()
        worker.send(protocol.ProfileTrial(trial))
        try:
            reply = worker.receive(monotonic() + 2 * self.timeout_s)
        except protocol.MismatchedReplyError as error:
            return Profile(reason=self._confused(worker, "profile", error)["reason"])
        if reply is None:
            return Profile(reason=self._lost(worker, "profile")["reason"])
        return from_json(Profile, reply.answer)

    def ceilings(self, device: str) -> Ceilings:
        """Achieved peaks, measured in the worker, so that this process never opens a CUDA context."""
        return from_json(Ceilings, self.ask(protocol.MeasureCeilings(device)))

    def _start(self) -> Worker:
        worker = Worker(self._options, {**child_environment(self._threads), **self._environment})
        worker.end = self._end
        return worker

    def ready(self) -> Worker:
        """The worker, once it accepts requests; a new one if the last has died, even while idle."""
        worker = self._worker
        if worker is None or (worker.is_ready and worker.exit_code() is not None):
            worker = self._replace()
        worker.wait_until_ready()
        return worker

    def _group(self, trial: Trial) -> tuple[bool, str, str]:
        return takes_turns(trial.case, trial.device, self.limits), trial.case.id, trial.device

    def _run_in_turns(self, trials: Iterable[Trial], block: int, ask: Ask) -> Iterator[Result]:
        """First samples of each trial in turn, then interleaved samples of all that stay resident in the worker.

        Each takes at least one more, after which all of its samples are compared.
        """
        turn = first_turn(self.limits)
        taken = []
        for trial in trials:
            result = self._run_one(trial, block, {**ask(trial), "hold": True, "limits": vars(turn)})
            taken.append((result, self._worker))
        held = {
            result.trial.implementation: result
            for result, holder in taken
            if holder is self._worker and result.measurement is not None
        }
        found = self._take_turns(held, block) if held else {}
        for result, _ in taken:
            last = found.get(result.trial.implementation, result)
            is_disturbed = bool(last.extra.get("disturbed"))
            yield self._run_one(last.trial, block, ask(last.trial)) if is_disturbed else last

    def _take_turns(self, held: Mapping[str, Result], block: int) -> dict[str, Result]:
        """Results by implementation; if the worker is lost, only the implementation that was being sampled fails."""
        worker = self.ready()
        worker.send(protocol.Interleave(tuple(held), vars(self.limits)))
        name = next(iter(held))
        while True:
            try:
                reply = worker.receive(monotonic() + self.timeout_s)
                lost = self._lost(worker, protocol.MEASURE) if reply is None else None
            except protocol.MismatchedReplyError as error:
                lost = self._confused(worker, protocol.MEASURE, error)
            if lost is not None:
                before = held[name]
                plain = {"trial": to_json(before.trial), "block": block, **lost}
                return {name: joined(before, self._result(before.trial, plain))}
            if isinstance(reply, protocol.InterleavedResults):
                found = [from_json(Result, result) for result in reply.results]
                if any(result.extra.get("unfit") for result in found):
                    self._replace()
                return dict(zip(held, found, strict=True))
            name = reply.implementation

    def _run_one(self, trial: Trial, block: int, more: Mapping[str, Any]) -> Result:
        return self._result(trial, self.run_plain(to_json(trial), block=block, **more))

    def _result(self, trial: Trial, plain: dict[str, Any]) -> Result:
        if "bytes" not in plain:
            work = find_op(trial.case.op).work(trial.case.resolved, trial.case.params)
            plain |= {"bytes": work.bytes, "flops": work.flops}
        return from_json(Result, plain)

    def _lost(self, worker: Worker, phase: str) -> dict[str, Any]:
        """Outcome of a trial whose worker died or did not answer in time."""
        exit_code = worker.exit_code()
        if exit_code is None:
            status, reason = Status.TIMEOUT, f"no answer after {self.timeout_s:g} s"
        else:
            status, reason = classify_death(exit_code)
        worker.kill()
        log = worker.log()
        self._replace()
        where = phase or "before it began"
        return {"status": str(status), "reason": f"{reason} ({where})", "extra": {"phase": phase, "log": log}}

    def _confused(self, worker: Worker, phase: str, error: protocol.MismatchedReplyError) -> dict[str, Any]:
        """Outcome of a trial during which the pipe carried something other than the replies to it."""
        worker.kill()
        log = worker.log()
        self._replace()
        reason = f"the worker's pipe carried something other than its reply: {error}"
        extra = {"phase": phase, "log": log, "disturbed": isinstance(error, protocol.StrayReplyError)}
        return {"status": str(Status.ERROR), "reason": reason, "extra": extra}

    def _replace(self) -> Worker:
        """End the worker and start a new one while the caller processes the result."""
        self.close()
        self._worker = worker = self._start()
        return worker
