"""The child process: `python -m opgauge.harness.worker.serve` runs trials that it is sent, one after another.

Requests come as JSON lines on standard input, replies go as JSON lines to a private copy
of standard output: what a kernel prints ends up on standard error and disturbs nothing.
`--ops TREE` takes `ops` from another tree, which is why everything that needs `ops` is
imported late.

Requests: {"do": "trial", "trial": …, "block": n}, {"do": "turns", "implementations": [...]}, {"do": "ceilings",
"device": …}, {"do": "profile", "trial": …} (after which this process times nothing any more), {"do": "parameters",
"trial": …}, and of a tree "inventory", "buildable", "digest", "cubins", "model" (see opgauge.harness.worker.inventory).
Replies: {"is": "ready"}, {"is": "phase", "phase": …}, {"is": "result", …}, {"is": "turn", "implementation": …},
{"is": "turns", "results": [...]}, {"is": "ceilings", …}, {"is": "profile", …}, {"is": "answer", …},
{"is": "mistake", "text": …}: a case file is wrong. {"is": "foreign", "reason": …}: the tree's `ops`
cannot be asked (see opgauge.harness.worker.contract). {"is": "fault", "traceback": …}: the harness itself failed.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opgauge.harness.result.result import Trial
    from opgauge.harness.worker.bench import Bench
    from opgauge.harness.worker.profiler import Profiler

PR_SET_PDEATHSIG = 1
Send = Callable[[dict[str, Any]], None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve requests until standard input ends."""
    options = _parser().parse_args(arguments)
    die_with_parent(options.parent)
    requests, replies = take_streams()
    faulthandler.enable()
    limit_resources(options.threads, options.memory)

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message, allow_nan=False) + "\n")
        replies.flush()

    try:
        if options.ops and not is_askable(Path(options.ops), send):
            return
        for name in options.preload:
            if find_spec(name) is not None:
                import_module(name)
        serve(requests, send)
    except Exception:  # noqa: BLE001  the parent raises it where somebody sees it
        send({"is": "fault", "traceback": traceback.format_exc()})
        raise SystemExit(1) from None


def is_askable(tree: Path, send: Send) -> bool:
    """Whether the tree's `ops` can be asked; sends why not."""
    from opgauge.harness.worker.contract import complaint

    reason = complaint(tree)
    if reason:
        send({"is": "foreign", "reason": reason})
    return not reason


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of the tree rather than of a kernel."""
    from opgauge.harness.errors import CaseError
    from opgauge.harness.worker import inventory

    paths = [Path(path) for path in request.get("paths", ())]
    asked: dict[str, Callable[[], Any]] = {
        "inventory": lambda: inventory.take(paths, lenient=request["lenient"]),
        "buildable": lambda: inventory.buildable(request["cases"]),
        "digest": lambda: inventory.digest(request["folder"], request["backend"]),
        "model": lambda: inventory.model(request["device"]),
        "cubins": lambda: inventory.cubins(request["folder"], request["index"]),
    }
    try:
        return {"is": "answer", "answer": asked[request["do"]]()}
    except CaseError as error:
        return {"is": "mistake", "text": str(error)}


def serve(requests: IO[str], send: Send) -> None:
    """Answer each request."""
    from opgauge.harness.measure import Limits
    from opgauge.harness.result.result import Trial, from_json, to_json
    from opgauge.harness.worker import ceilings
    from opgauge.harness.worker.attempt import Trusted
    from opgauge.harness.worker.bench import Bench

    use_tuning()
    bench = Bench(lambda phase: send({"is": "phase", "phase": phase}))
    send({"is": "ready"})
    for line in requests:
        request = json.loads(line)
        if request["do"] == "ceilings":
            send({"is": "ceilings", "ceilings": to_json(ceilings.measure(request["device"]))})
            continue
        if request["do"] == "profile":
            send({"is": "profile", "profile": to_json(profiler(bench).run(from_json(Trial, request["trial"])))})
            continue
        if request["do"] == "parameters":
            send({"is": "answer", "answer": parameters(bench, from_json(Trial, request["trial"]))})
            continue
        if request["do"] == "turns":
            limits = from_json(Limits, request["limits"])
            found = bench.take_turns(
                request["implementations"], limits, tell=lambda name: send({"is": "turn", "implementation": name})
            )
            send({"is": "turns", "results": [to_json(result) for result in found]})
            continue
        if request["do"] != "trial":
            send(answer(request))
            continue
        with tuned(request.get("tuning")):
            result = bench.run(
                from_json(Trial, request["trial"]),
                from_json(Limits, request["limits"]),
                block=request["block"],
                cpu_fallback=request["cpu_fallback"],
                trusted=from_json(Trusted, request["trusted"]) if request.get("trusted") else None,
                with_digest=request.get("with_digest", False),
                with_grounds=request.get("with_grounds", False),
                kept=Path(request["kept"]) if request.get("kept") else None,
                hold=request.get("hold", False),
                reference_threads=request.get("reference_threads"),
            )
        send({"is": "result", "result": to_json(result)})


def parameters(bench: Bench, trial: Trial) -> dict[str, Any]:
    """Names of the launch parameters that a trial's kernel asks for, or why it cannot be bound."""
    from opgauge.harness.worker.bench import FAULTS

    try:
        return {"names": bench.parameters(trial)}
    except FAULTS as error:
        return {"failed": str(error)}


@cache
def profiler(bench: Bench) -> Profiler:
    """The one profiler, imported and made when the first kernel list is wanted."""
    from opgauge.harness.worker.profiler import Profiler

    return Profiler(bench)


def use_tuning() -> None:
    """Let the file that somebody named go before the tree's own, where the tree knows of such files."""
    from opgauge.harness.settings import tuning_file

    tuning = sys.modules.get("opgauge.ops._core.tuning")
    if tuning is not None:
        tuning.use(tuning_file())


def tuned(values: Mapping[str, int] | None) -> AbstractContextManager[None]:
    """These launch parameters are in force meanwhile."""
    return nullcontext() if not values else import_module("opgauge.ops._core.tuning").override(values)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; leave if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
    parser.add_argument("--ops", default="", help="tree whose `ops` to import")
    parser.add_argument("--preload", nargs="*", default=(), help="modules to import before the first request")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--memory", type=int, default=None, help="bytes of address space")
    return parser


if __name__ == "__main__":
    main()
