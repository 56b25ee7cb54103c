"""Executors: where trials run. Here: worker processes on this machine."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Protocol, Self

from harness.errors import TreeError, WorkerError
from harness.failure import classify_death
from harness.measure import Limits
from harness.result import Ceilings, Profile, Result, Status, Trial, from_json, to_json
from harness.settings import child_environment, tuning_file
from ops import find_op
from ops._core.tuning import read as read_tuning

LOG_BYTES = 4000
START_S = 120.0
"""A worker that has not begun to listen after this long never will."""
CHUNK = 1 << 16


class Executor(Protocol):
    """Runs trials somewhere and hands out each result as soon as there is one."""

    def run(self, trials: Iterable[Trial], *, block: int = 0) -> Iterator[Result]:
        """Results in order of trials."""

    def ceilings(self, device: str) -> Ceilings:
        """What `device` reaches, measured where the trials run."""


class LocalExecutor:
    """Runs trials in a worker process of this machine, and in a new one when that has died.

    limits: how long to measure. timeout_s: for a kernel's part of a trial, and as much
    again for the reference. ops_tree: folder whose `ops` the workers import. threads: CPUs that they
    use (None: all). memory_bytes: address space they may use (None: no limit; CUDA needs
    far more than it uses). preload: modules they import while the parent does other things.
    cpu_fallback: let the CPU's kernel stand in where a device has none. environment: variables
    that they get besides this process's own.

    The worker starts at once, so that it warms up while the caller goes on. Use it in a
    `with` statement: at the end no process is left. Raises TuningError where `OPGAUGE_TUNING` names a file
    that cannot be read. On Linux workers die with the thread
    that made the executor, so make it in one that lasts.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        timeout_s: float = 120.0,
        ops_tree: Path | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        preload: Sequence[str] = ("numba",),
        cpu_fallback: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        named = tuning_file()
        if named is not None:
            read_tuning(named)
        self.limits = limits or Limits()
        self.timeout_s = timeout_s
        self.cpu_fallback = cpu_fallback
        self._environment = dict(environment or {})
        self._options = _worker_options(ops_tree, threads, memory_bytes, preload)
        self._threads = threads
        self._worker: Worker | None = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and whatever it started."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def run(self, trials: Iterable[Trial], *, block: int = 0) -> Iterator[Result]:
        """Results in order of trials; a trial is sent when the result before it has been taken.

        Raises WorkerError where the harness, not a kernel, fails.
        """
        for trial in trials:
            yield self._run_one(trial, block)

    def run_plain(self, trial: Mapping[str, Any], *, block: int = 0, **more: Any) -> dict[str, Any]:
        """A trial and its result as plain JSON: for trees whose cases this process could not build.

        more: of the request, `trusted`, `with_digest` and `kept` (see harness.block.Bench.run), and `tuning`: launch
        parameters by name, in force for this trial.
        The result of a worker that was lost has no work, for only the tree knows it.
        """
        worker = self._ready()
        limits = vars(self.limits)
        request = {"do": "trial", "trial": trial, "limits": limits, "block": block, "cpu_fallback": self.cpu_fallback}
        worker.send(request | more)
        phase = ""
        deadline = monotonic() + self.timeout_s
        while True:
            reply = worker.receive(deadline)
            if reply is None:
                return {"trial": trial, "block": block, **self._lost(worker, phase)}
            if reply["is"] == "result":
                result: dict[str, Any] = reply["result"]
                if result["status"] in _DOUBTFUL and trial["backend"] != "cpu":
                    self._replace()
                return result
            phase = reply["phase"]
            if phase == "allocate":
                deadline = monotonic() + self.timeout_s

    def ask(self, request: Mapping[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """The worker's answer to a request other than a trial; raises WorkerError where none comes in time."""
        worker = self._ready()
        worker.send(dict(request))
        reply = worker.receive(monotonic() + (timeout_s or self.timeout_s))
        if reply is None:
            self.close()
            msg = f"{request['do']}: {worker.log() or 'no answer'}"
            raise WorkerError(msg)
        return reply

    def profile(self, trials: Iterable[Trial]) -> Iterator[Profile]:
        """The kernel list of each trial. Use an executor that measures nothing: a profiler disturbs what is timed."""
        for trial in trials:
            yield self.profile_plain(to_json(trial))

    def profile_plain(self, trial: Mapping[str, Any]) -> Profile:
        """The kernel list of a trial that is plain JSON."""
        worker = self._ready()
        worker.send({"do": "profile", "trial": trial})
        reply = worker.receive(monotonic() + 2 * self.timeout_s)
        if reply is None:
            return Profile(reason=self._lost(worker, "profile")["reason"])
        return from_json(Profile, reply["profile"])

    def ceilings(self, device: str) -> Ceilings:
        """Measured in the worker, so that this process never opens a CUDA context."""
        return from_json(Ceilings, self.ask({"do": "ceilings", "device": device})["ceilings"])

    def _start(self) -> Worker:
        return Worker(self._options, {**child_environment(self._threads), **self._environment})

    def _ready(self) -> Worker:
        """The worker, a new one if the last has died, even while it had nothing to do."""
        worker = self._worker
        if worker is None or (worker.is_ready and worker.exit_code() is not None):
            worker = self._replace()
        worker.wait_until_ready()
        return worker

    def _run_one(self, trial: Trial, block: int) -> Result:
        plain = self.run_plain(to_json(trial), block=block)
        if "bytes" not in plain:
            work = find_op(trial.case.op).work(trial.case.resolved, trial.case.params)
            plain |= {"bytes": work.bytes, "flops": work.flops}
        return from_json(Result, plain)

    def _lost(self, worker: Worker, phase: str) -> dict[str, Any]:
        """What became of a trial whose worker died or did not answer in time."""
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

    def _replace(self) -> Worker:
        """End the worker and let a new one start, while the caller deals with the result."""
        self.close()
        self._worker = worker = self._start()
        return worker


class Worker:
    """One worker process and its two pipes."""

    def __init__(self, options: Sequence[str], environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in kill
        self._process = subprocess.Popen(
            # -P: where opgauge is called there may be another harness, which is not to be this one
            [sys.executable, "-P", "-m", "harness.worker", "--parent", str(os.getpid()), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self._pending = b""
        self.is_ready = False

    def wait_until_ready(self) -> None:
        """Return when it listens; raises WorkerError if it never will."""
        if self.is_ready:
            return
        reply = self.receive(monotonic() + START_S)
        if reply is None:
            self.kill()
            msg = f"the worker did not start: {self.log() or 'no word from it'}"
            raise WorkerError(msg)
        self.is_ready = True

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; a worker that is gone is noticed when its answer does not come."""
        stream = _open(self._process.stdin)
        try:
            stream.write(json.dumps(request, allow_nan=False).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            self._process.wait()

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next reply; None when it has died or nothing came before `deadline`.

        Raises WorkerError when the worker reports a fault of the harness.
        """
        stream = _open(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(deadline - monotonic(), 0)):
                    return None
                chunk = os.read(stream.fileno(), CHUNK)
                if not chunk:
                    self._process.wait()
                    return None
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        if reply["is"] == "fault":
            self.kill()
            raise WorkerError(reply["traceback"])
        if reply["is"] == "foreign":
            self.kill()
            raise TreeError(reply["reason"])
        return reply

    def exit_code(self) -> int | None:
        """As subprocess gives it, or None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """The end of what it printed; after kill, what was read then."""
        return self._last_log if self._log.closed else self._read_log()

    def kill(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                _close(stream)
        if not self._log.closed:
            self._last_log = self._read_log()
            self._log.close()

    def _read_log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - LOG_BYTES, 0))
        return self._log.read().decode(errors="replace").strip()


_DOUBTFUL = (Status.ERROR, Status.OUT_OF_MEMORY)
"""After these a CUDA context may be unusable."""


def _worker_options(
    ops_tree: Path | None, threads: int | None, memory_bytes: int | None, preload: Sequence[str]
) -> list[str]:
    options = ["--preload", *preload]
    if ops_tree is not None:
        options += ["--ops", str(ops_tree)]
    if threads is not None:
        options += ["--threads", str(threads)]
    if memory_bytes is not None:
        options += ["--memory", str(memory_bytes)]
    return options


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        msg = "the worker has no pipe"
        raise WorkerError(msg)
    return stream


def _close(stream: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        stream.close()
