"""A worker process and its two pipes. Imports little, since a worker starts before its parent's imports."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from opgauge.harness.errors import TimeIsUpError, TreeError, WorkerError
from opgauge.harness.project.active import measured
from opgauge.harness.worker import protocol
from opgauge.harness.worker.child_processes import descendants

LOG_BYTES = 4000
"""Characters of the end of a worker's output that a result stores."""
START_S = 120.0
"""Longest wait for a worker to accept requests."""
CHUNK = 1 << 16
"""Bytes read from the pipe at once."""
MOST_BYTES = 256 << 20
"""Longest reply; a kernel that floods the pipe must not fill this process's memory."""
PRELOADED = ("numba",)
"""Modules that a worker imports before the first request."""


def worker_options(
    ops_tree: Path | None, threads: int | None, memory_bytes: int | None, preload: Sequence[str] = PRELOADED
) -> list[str]:
    """Arguments of `opgauge.harness.worker.serve`: see LocalExecutor."""
    options = ["--preload", *preload, *tree_options(ops_tree)]
    if threads is not None:
        options += ["--threads", str(threads)]
    if memory_bytes is not None:
        options += ["--memory", str(memory_bytes)]
    return options


def tree_options(ops_tree: Path | None) -> list[str]:
    """Arguments that say which ops a process imports: the active project's, and from which tree."""
    project = measured()
    named = [] if project is None else ["--project", str(project.file)]
    return named if ops_tree is None else [*named, "--ops", str(ops_tree)]


class Worker:
    """One worker process and its two pipes. end: time by `time.monotonic` until which replies are waited for."""

    def __init__(self, options: Sequence[str], environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in kill
        self._process = subprocess.Popen(
            # -P: the current folder may contain another harness, which must not be imported
            [sys.executable, "-P", "-m", "opgauge.harness.worker.serve", "--parent", str(os.getpid()), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self._pending = bytearray()
        self._sent = protocol.Address(0, "", self._process.pid)
        self.is_ready = False
        self.end = float("inf")

    def pin(self, cpus: Collection[int]) -> None:
        """Restrict all of its threads to these CPUs, if the system supports it."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        for task in tasks.iterdir() if tasks.is_dir() else ():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cpus)

    def cpu_s(self) -> float:
        """CPU time that it has used, in seconds; 0 if the system does not report it."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def wait_until_ready(self) -> None:
        """Wait until the worker accepts requests; raises WorkerError if it does not."""
        if self.is_ready:
            return
        reply = self.receive(monotonic() + START_S)
        if reply is None:
            self.kill()
            msg = f"the worker did not start: {self.log() or 'no output'}"
            raise WorkerError(msg)
        self.is_ready = True

    def send(self, request: protocol.Request) -> None:
        """Send a request; a dead worker is noticed by `receive`."""
        stream = _open(self._process.stdin)
        self._sent = protocol.Address(self._sent.request + 1, protocol.trial_name(request), self._process.pid)
        try:
            stream.write(protocol.encode(request, self._sent).encode())
            stream.flush()
        except BrokenPipeError:
            self._process.wait()

    def receive(self, deadline: float) -> Any:
        """The next reply; None if it has died or nothing arrived before `deadline`.

        Raises TimeIsUpError, having killed it, if `end` comes first, WorkerError if the worker reports a fault of the
        harness, TreeError if it cannot use the tree, MismatchedReplyError for a line that does not answer the last
        request.
        """
        stream = _open(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(min(deadline, self.end) - monotonic(), 0)):
                    if monotonic() < self.end:
                        return None
                    self.kill()
                    raise TimeIsUpError
                chunk = os.read(stream.fileno(), CHUNK)
                if not chunk:
                    self._process.wait()
                    return None
                self._pending += chunk
                if len(self._pending) > MOST_BYTES:
                    msg = f"a line of over {MOST_BYTES >> 20} MiB"
                    raise protocol.MismatchedReplyError(msg)
        line, _, self._pending = self._pending.partition(b"\n")
        reply, address = protocol.decode(bytes(line))
        if isinstance(reply, protocol.HarnessFault):
            self.kill()
            raise WorkerError(reply.traceback)
        if isinstance(reply, protocol.IncompatibleTree):
            self.kill()
            raise TreeError(reply.reason)
        if address != self._sent:
            msg = f"process {address.process} answered request {address.request} ({address.trial or 'no trial'})"
            is_earlier = address.request < self._sent.request and address.process == self._process.pid
            raise (protocol.StrayReplyError if is_earlier else protocol.MismatchedReplyError)(msg)
        return reply

    def exit_code(self) -> int | None:
        """The exit code as subprocess reports it; None while the worker runs."""
        return self._process.poll()

    def log(self) -> str:
        """The end of the worker's output."""
        return self._last_log if self._log.closed else self._read_log()

    def interrupt(self) -> None:
        """Kill the process and its descendants, from any thread: one that waits for a reply learns of its death.

        Descendants may have left its process group.
        """
        left = descendants(self._process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and its descendants; a second call does nothing."""
        if self._log.closed:
            return
        self.interrupt()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                _close(stream)
        self._last_log = self._read_log()
        self._log.close()

    def _read_log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - LOG_BYTES, 0))
        return self._log.read().decode(errors="replace").strip()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        msg = "the worker has no pipe"
        raise WorkerError(msg)
    return stream


def _close(stream: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        stream.close()
