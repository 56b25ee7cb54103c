"""Implementations of p_norm (float32, porder inf, last axis) that go wrong, named after how they do.

Importing this module registers them, so only workers do: `LocalExecutor(preload=[…])`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.harness.worker.protocol import TrialResult
from opgauge.ops import kernel

STANDARD_ERROR = 2
Right = Callable[[Any, dict[str, Any]], None]


def right(x: Any, out: dict[str, Any]) -> None:
    """What every one of them should have done."""
    np.max(np.abs(x), axis=-1, out=out["y"])


def faulty(function: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Register `function(x, out)` under its own name."""

    def run(*, x: Any, out: dict[str, Any], **params: object) -> Any:
        del params
        return function(x, out)

    kernel("p_norm", function.__name__, "cpu", ("float32",))(run)


@faulty
def segfault(x: Any, out: dict[str, Any]) -> None:
    del x, out
    ctypes.string_at(0)


@faulty
def hang(x: Any, out: dict[str, Any]) -> None:
    del x, out
    time.sleep(600)


@faulty
def hang_with_child(x: Any, out: dict[str, Any]) -> None:
    del x, out
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["FAULTY_FOLDER"], "child.pid").write_text(str(child.pid))
    Path(os.environ["FAULTY_FOLDER"], "worker.pid").write_text(str(os.getpid()))
    time.sleep(600)


@faulty
def leave(x: Any, out: dict[str, Any]) -> None:
    del x, out
    os._exit(0)


@faulty
def killed(x: Any, out: dict[str, Any]) -> None:
    del x, out
    os.kill(os.getpid(), signal.SIGKILL)


@faulty
def exhaust(x: Any, out: dict[str, Any]) -> None:
    del x, out
    np.empty(1 << 60, np.uint8)


@faulty
def complain(x: Any, out: dict[str, Any]) -> None:
    del x, out
    msg = "a kernel's own\nfault"
    raise ValueError(msg)


@faulty
def exit_politely(x: Any, out: dict[str, Any]) -> None:
    del x, out
    raise SystemExit(0)


@faulty
def refuse(x: Any, out: dict[str, Any]) -> None:
    del x, out
    msg = "rows longer than three are not done here"
    raise NotImplementedError(msg)


@faulty
def chatter(x: Any, out: dict[str, Any]) -> None:
    sys.stdout.write('{"is": "result", "result": 1}\n')
    os.write(1, b"not a line of the protocol")
    os.write(2, b"nor this\n")
    sys.stdout.flush()
    sys.stdin.read()
    right(x, out)


@faulty
def mutate(x: Any, out: dict[str, Any]) -> None:
    right(x, out)
    x[0, 0] = -x[0, 0]


@faulty
def zeros(x: Any, out: dict[str, Any]) -> None:
    del x
    out["y"][...] = 0


@faulty
def nothing(x: Any, out: dict[str, Any]) -> None:
    del x, out


@faulty
def overrun(x: Any, out: dict[str, Any]) -> None:
    right(x, out)
    y = out["y"]
    np.lib.stride_tricks.as_strided(y, (y.size + 1,), y.strides)[-1] = 0


@faulty
def generous(x: Any, out: dict[str, Any]) -> tuple[Any, Any]:
    """Returns an output that the op does not have."""
    right(x, out)
    return out["y"], out["y"]


CALLS = {"once": 0, "wrong_second": 0, "wrong_later": 0}


@faulty
def once(x: Any, out: dict[str, Any]) -> None:
    CALLS["once"] += 1
    if CALLS["once"] == 1:
        right(x, out)


@faulty
def wrong_second(x: Any, out: dict[str, Any]) -> None:
    CALLS["wrong_second"] += 1
    right(x, out)
    if CALLS["wrong_second"] == 2:
        out["y"][0] += 1


@faulty
def wrong_later(x: Any, out: dict[str, Any]) -> None:
    CALLS["wrong_later"] += 1
    right(x, out)
    if CALLS["wrong_later"] > 2:
        out["y"][-1] *= 1.001


TURNS: Counter[str] = Counter()
"""How often one of those below was called right after another one of them, the first time included."""
LAST_CALLED = [""]


def turn(name: str) -> int:
    """The number of the turn that a call of `name` is part of."""
    TURNS[name] += name != LAST_CALLED[0]
    LAST_CALLED[0] = name
    return TURNS[name]


@faulty
def sound_a(x: Any, out: dict[str, Any]) -> None:
    turn("a")
    right(x, out)


@faulty
def sound_b(x: Any, out: dict[str, Any]) -> None:
    turn("b")
    right(x, out)


@faulty
def wrong_in_a_later_turn(x: Any, out: dict[str, Any]) -> None:
    right(x, out)
    if turn("wrong") > 2:
        out["y"][-1] *= 1.001


@faulty
def idle_in_a_later_turn(x: Any, out: dict[str, Any]) -> None:
    if turn("idle") <= 2:
        right(x, out)


@faulty
def die_in_a_later_turn(x: Any, out: dict[str, Any]) -> None:
    right(x, out)
    if turn("dying") > 2:
        os._exit(0)


def write_to_pipes(line: bytes) -> None:
    """Write a line to every pipe that this process has open for writing, standard streams excepted."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if int(link.name) > STANDARD_ERROR and str(link.readlink()).startswith("pipe:"):
                os.write(int(link.name), line)


@faulty
def forge_reply(x: Any, out: dict[str, Any]) -> None:
    """Answers in the worker's place, to a request that it guesses."""
    right(x, out)
    result = {"status": "ok", "samples_ns": [1.0]}
    message = {"kind": "TrialResult", "to": [1, "", os.getpid()], "content": {"result": result}}
    write_to_pipes(json.dumps(message).encode() + b"\n")


@faulty
def answer_early(x: Any, out: dict[str, Any]) -> None:
    """Answers its own request by the worker's channel; the true reply follows."""
    right(x, out)
    if turn("early") == 1:
        channel = next(one for one in gc.get_objects() if type(one).__name__ == "Channel")
        trial = sys._getframe()
        while trial.f_code.co_name != "run_trial":
            trial = trial.f_back  # type: ignore[assignment]
        result = {"trial": trial.f_locals["request"].trial, "status": "ok", "extra": {}, "bytes": 1, "flops": 1}
        channel.send(TrialResult(result))


@faulty
def forge_noise(x: Any, out: dict[str, Any]) -> None:
    """Writes something else to the worker's pipe."""
    right(x, out)
    write_to_pipes(b'{"is": "result"}\n')
