"""The worker process: `python -m opgauge.harness.worker.serve` runs the trials that its parent sends, one at a time.

Requests come as lines on standard input; replies go to a private copy of standard output (see `protocol`). Output of
kernels goes to standard error. `--ops TREE` imports `ops` from another tree, so modules that need `ops` are imported
inside functions.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from opgauge.harness.worker import protocol

if TYPE_CHECKING:
    from opgauge.harness.worker.bench import Bench
    from opgauge.harness.worker.profiler import Profiler

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of prctl: signal on the death of the parent; orphaned descendants become children."""
FORKED = 70
"""Exit code of a forked child that tries to reply."""


class Channel:
    """Pipe to the parent: writes replies to the current request."""

    def __init__(self, replies: IO[str]) -> None:
        self._replies = replies
        self._process = os.getpid()
        self._address = protocol.Address(0, "", self._process)

    def begin(self, address: protocol.Address, request: protocol.Request) -> None:
        """Make the following replies answer this request."""
        self._address = protocol.Address(address.request, protocol.trial_name(request), self._process)

    def send(self, reply: protocol.Reply) -> None:
        """Write a reply.

        A process that a kernel forked exits here, because the parent waits for another process's reply.
        """
        if os.getpid() != self._process:
            os._exit(FORKED)
        self._replies.write(protocol.encode(reply, self._address))
        self._replies.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve requests until standard input ends."""
    options = _parser().parse_args(arguments)
    die_with_parent(options.parent)
    requests, replies = take_streams()
    faulthandler.enable()
    limit_resources(options.threads, options.memory)
    channel = Channel(replies)
    try:
        with uncollected():
            if (options.ops or options.project) and not is_usable(options, channel):
                return
            for name in options.preload:
                if find_spec(name) is not None:
                    import_module(name)
            import_module("opgauge.harness.worker.bench")
        serve(requests, channel)
    except Exception:  # noqa: BLE001  the parent raises it where somebody sees it
        channel.send(protocol.HarnessFault(traceback.format_exc()))
        raise SystemExit(1) from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Exempt what is imported from garbage collection, a tenth of the time until the worker is ready."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def is_usable(options: argparse.Namespace, channel: Channel) -> bool:
    """Whether the ops of the tree, or of the project, can be imported and fulfil the contract.

    Otherwise replies with the reason. Without options the shipped ops are imported when they are first used.
    """
    from opgauge.harness.worker.contract import incompatibility, project_incompatibility

    tree = Path(options.ops) if options.ops else None
    reason = (
        project_incompatibility(Path(options.project), tree) if options.project else incompatibility(Path(options.ops))
    )
    if reason:
        channel.send(protocol.IncompatibleTree(reason))
    return not reason


def serve(requests: IO[str], channel: Channel) -> None:
    """Answer each request."""
    from opgauge.harness.worker.bench import Bench

    use_tuning()
    bench = Bench(lambda phase: channel.send(protocol.Phase(phase)))
    channel.send(protocol.Ready())
    for line in requests:
        request, address = protocol.decode(line)
        channel.begin(address, request)
        channel.send(HANDLERS[type(request)](bench, request, channel))


def run_trial(bench: Bench, request: protocol.RunTrial, _: Channel) -> protocol.Reply:
    """The result of a trial, also if its kernel fails."""
    from opgauge.harness.measure import Limits
    from opgauge.harness.result.record_json import from_json, to_json
    from opgauge.harness.result.result import Trial
    from opgauge.harness.worker.attempt import Trusted

    with tuned(request.tuning):
        result = bench.run(
            from_json(Trial, request.trial),
            from_json(Limits, request.limits),
            block=request.block,
            cpu_fallback=request.cpu_fallback,
            trusted=from_json(Trusted, request.trusted) if request.trusted else None,
            with_digest=request.with_digest,
            with_fingerprint=request.with_fingerprint,
            kept=Path(request.kept) if request.kept else None,
            hold=request.hold,
            extra_checks=request.extra_checks,
            late_checks=request.late_checks,
            reference_threads=request.reference_threads,
            memory=request.memory,
        )
    return protocol.TrialResult(to_json(result))


def interleave(bench: Bench, request: protocol.Interleave, channel: Channel) -> protocol.Reply:
    """Results of resident implementations after round-robin sampling."""
    from opgauge.harness.measure import Limits
    from opgauge.harness.result.record_json import from_json, to_json
    from opgauge.harness.worker.interleave import interleave

    limits = from_json(Limits, request.limits)
    found = interleave(bench, request.implementations, limits, lambda name: channel.send(protocol.Sampling(name)))
    return protocol.InterleavedResults(tuple(to_json(result) for result in found))


def sample_trial(bench: Bench, request: protocol.SampleTrial, _: Channel) -> protocol.Reply:
    """Further samples of one resident implementation."""
    from opgauge.harness.measure import Limits
    from opgauge.harness.result.record_json import from_json, to_json

    found = bench.sample(request.implementation, from_json(Limits, request.limits), is_last=request.is_last)
    if request.is_last:
        (found,) = bench.judged_together([found])
    return protocol.TrialResult(to_json(found))


def measure_ceilings(_: Bench, request: protocol.MeasureCeilings, __: Channel) -> protocol.Reply:
    """Achieved peaks of a device."""
    from opgauge.harness.result.record_json import to_json
    from opgauge.harness.worker import ceilings

    return protocol.Answer(to_json(ceilings.measure(request.device)))


def profile_trial(bench: Bench, request: protocol.ProfileTrial, _: Channel) -> protocol.Reply:
    """The kernel list of one call."""
    from opgauge.harness.result.record_json import from_json, to_json
    from opgauge.harness.result.result import Trial

    return protocol.Answer(to_json(profiler(bench).run(from_json(Trial, request.trial))))


def list_tunables(bench: Bench, request: protocol.ListTunables, _: Channel) -> protocol.Reply:
    """Names of the tunables that a trial's kernel reads, or why it cannot be bound."""
    from opgauge.harness.result.record_json import from_json
    from opgauge.harness.result.result import Trial
    from opgauge.harness.worker.faults import FAULTS

    try:
        return protocol.Answer({"names": bench.parameters(from_json(Trial, request.trial))})
    except FAULTS as error:
        return protocol.Answer({"failed": str(error)})


def list_imported(_: Bench, request: protocol.ListImported, __: Channel) -> protocol.Reply:
    """Names of the modules that are imported."""
    return protocol.Answer([name for name in request.names if name in sys.modules])


def describe_tree(_: Bench, request: Any, __: Channel) -> protocol.Reply:
    """Facts about the tree."""
    from opgauge.harness.errors import CaseError
    from opgauge.harness.worker import inventory

    try:
        match request:
            case protocol.TakeInventory(paths, lenient):
                found: Any = inventory.take([Path(path) for path in paths], lenient=lenient)
            case protocol.CheckBuildable(cases):
                found = inventory.buildable(cases)
            case protocol.DigestSources(folder, backend):
                found = inventory.digest(folder, backend)
            case protocol.DigestCubins(folder, index):
                found = inventory.cubins(folder, index)
            case protocol.NameModel(device):
                found = inventory.model(device)
    except CaseError as error:
        return protocol.InvalidCases(str(error))
    return protocol.Answer(found)


Handler = Callable[["Bench", Any, Channel], protocol.Reply]
HANDLERS: Mapping[type, Handler] = {
    protocol.RunTrial: run_trial,
    protocol.Interleave: interleave,
    protocol.SampleTrial: sample_trial,
    protocol.MeasureCeilings: measure_ceilings,
    protocol.ProfileTrial: profile_trial,
    protocol.ListTunables: list_tunables,
    protocol.TakeInventory: describe_tree,
    protocol.CheckBuildable: describe_tree,
    protocol.DigestSources: describe_tree,
    protocol.DigestCubins: describe_tree,
    protocol.NameModel: describe_tree,
    protocol.ListImported: list_imported,
}
"""Handler of each kind of request."""


@cache
def profiler(bench: Bench) -> Profiler:
    """The process's only profiler, created for the first kernel list."""
    from opgauge.harness.worker.profiler import Profiler

    return Profiler(bench)


def use_tuning() -> None:
    """Prefer the tuning file of the settings over the tree's own, if the tree supports tuning files."""
    from opgauge.harness.settings import tuning_file

    tuning = sys.modules.get("opgauge.ops._core.tuning")
    if tuning is not None:
        tuning.use(tuning_file())


def tuned(values: Mapping[str, int] | None) -> AbstractContextManager[None]:
    """Context in which these tunables are in force."""
    return nullcontext() if not values else import_module("opgauge.ops._core.tuning").override(values)


def die_with_parent(parent: int) -> None:
    """Ask the operating system to kill this process when its parent dies; exit if that has happened already.

    Processes that a kernel's children leave become children of this one, where they are seen.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if parent and os.getppid() != parent:
        raise SystemExit(1)


def take_streams() -> tuple[IO[str], IO[str]]:
    """Private copies of standard input and output; the originals become /dev/null and standard error."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return os.fdopen(requests, encoding="utf-8"), os.fdopen(replies, "w", encoding="utf-8")


def limit_resources(threads: int | None, memory: int | None) -> None:
    """Run on the first `threads` CPUs only; allow `memory` bytes of address space."""
    if threads is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="opgauge.harness.worker.serve", description="Run trials sent as JSON lines.")
    parser.add_argument("--parent", type=int, default=0, help="process id of the parent")
    parser.add_argument("--ops", default="", help="tree whose `ops` to import, or another checkout of the project")
    parser.add_argument("--project", default="", help="configuration of the project whose ops to import")
    parser.add_argument("--preload", nargs="*", default=(), help="modules to import before the first request")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--memory", type=int, default=None, help="bytes of address space")
    return parser


if __name__ == "__main__":
    main()
