"""Cheats that compute at another time, by threads, timers, collectors and hooks, or in another precision or place."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tests.cheats.adaptive import norms
from tests.cheats.catalogue import Run, cheat, compute, write

Arrays = dict[str, Any]


@cheat("lazy", "long-rows")
def leaves_rows_to_a_warm_pool(inputs: Arrays, out: Arrays) -> Run:
    """A pool that has started in prepare computes the last rows."""
    pool = ThreadPoolExecutor(1)
    pool.submit(norms, inputs["x"][:1]).result()

    def tail() -> None:
        out["y"][384:] = norms(inputs["x"][384:])

    def run() -> None:
        pool.submit(tail)
        out["y"][:384] = norms(inputs["x"][:384])

    return run


@cheat("lazy", "long-rows")
def prefetches_between_samples(inputs: Arrays, out: Arrays) -> Run:
    """A thread computes to a second buffer again and again; the call copies it."""
    ready = norms(inputs["x"])

    def work() -> None:
        for _ in range(20_000):
            ready[...] = norms(inputs["x"])
            time.sleep(0.0005)

    threading.Thread(target=work, daemon=True).start()

    def run() -> None:
        out["y"][...] = ready

    return run


@cheat("lazy", "long-rows")
def computes_in_a_timer_signal(inputs: Arrays, out: Arrays) -> Run:
    """A handler writes the last rows shortly after the call."""

    def late(*_: Any) -> None:
        out["y"][-64:] = norms(inputs["x"][-64:])

    signal.signal(signal.SIGALRM, late)

    def run() -> None:
        out["y"][:-64] = norms(inputs["x"][:-64])
        signal.setitimer(signal.ITIMER_REAL, 0.0001)

    return run


@cheat("lazy", "rows")
def computes_in_a_collector_callback(inputs: Arrays, out: Arrays) -> Run:
    """The garbage collector writes the result, when it runs."""
    gc.callbacks.append(lambda *_: write("rows", inputs, out))
    write("rows", inputs, out)
    return lambda: None


@cheat("lazy", "rows")
def computes_in_a_profile_hook(inputs: Arrays, out: Arrays) -> Run:
    """A hook of the interpreter writes the result when the harness begins to look at it."""

    def hook(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name in {"after", "outputs", "judge", "check"}:
            write("rows", inputs, out)

    sys.setprofile(hook)
    return lambda: None


@cheat("touching the checker", "rows")
def replaces_a_numpy_function(inputs: Arrays, out: Arrays) -> Run:
    """The largest error is always 0."""
    del inputs
    np.max = lambda *_, **__: np.float64(0)  # type: ignore[assignment]

    def run() -> None:
        out["y"][...] = 1

    return run


@cheat("memoising", "rows")
def replaces_the_output(inputs: Arrays, out: Arrays) -> Run:
    """Puts an array of its own in place of the output."""
    ready = norms(inputs["x"])

    def run() -> None:
        out["y"] = ready

    return run


@cheat("changing inputs", "sum")
def adds_into_its_input(inputs: Arrays, out: Arrays) -> Run:
    """Returns the first input, into which it has added the second."""
    del out

    def run() -> tuple[Any]:
        return (np.add(inputs["in_0"], inputs["in_1"], out=inputs["in_0"]),)

    return run


@cheat("accuracy", "long-rows")
def sums_squares_in_half(inputs: Arrays, out: Arrays) -> Run:
    """Accumulates in float16, which torch and NumPy do not."""

    def run() -> None:
        out["y"][...] = np.sqrt(np.sum(np.square(inputs["x"].astype(np.float16)), axis=-1, dtype=np.float16))

    return run


@cheat("alternating", "middle-sum")
def works_in_every_second_call(inputs: Arrays, out: Arrays) -> Run:
    """Outputs of even calls are those of the calls before."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] % 2:
            write("middle-sum", inputs, out)

    return run


class _Promise:
    """An object that NumPy converts to an array, which is computed then."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __array__(self, *_: Any, **__: Any) -> Any:
        return compute("long-rows", self._source)["y"]


@cheat("lazy", "long-rows")
def returns_what_converts_itself(inputs: Arrays, out: Arrays) -> Run:
    del out
    return lambda: (_Promise(inputs),)


@cheat("lazy", "long-rows")
def returns_what_is_called_numpys(inputs: Arrays, out: Arrays) -> Run:
    """Its class names NumPy as its module."""
    del out
    kind = type("ndarray", (_Promise,), {"__module__": "numpy"})
    return lambda: (kind(inputs),)
