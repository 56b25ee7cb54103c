"""Cheats where nothing looked: integers, lazy tuples, views, code that checks call, settings of libraries and of C."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import tracemalloc
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from opgauge.harness.worker.process_settings import PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS
from tests.cheats.adaptive import norms
from tests.cheats.catalogue import Run, cheat, compute
from tests.cheats.mischief import misbehaves

Arrays = dict[str, Any]
SECONDS = 600
"""Longer than a trial takes."""
CALLS = 5
"""Calls that are checked before sampling."""


def signs(rows: Any) -> Any:
    """Signs, for which each number is compared several times: remembering them has to be cheaper."""
    found = np.zeros_like(rows)
    for _ in range(8):
        found = np.where(rows > 0, 1, np.where(rows < 0, -1, 0)).astype(rows.dtype)
    return found


@cheat("memoising slices", "integers")
def remembers_rows_of_integers(inputs: Arrays, out: Arrays) -> Run:
    """Fresh values used to change floating-point inputs only."""
    known: dict[bytes, Any] = {}

    def run() -> None:
        x = inputs["x"]
        for row, key in enumerate(map(bytes, np.ascontiguousarray(x[:, ::64]))):
            if key not in known:
                known[key] = signs(x[row])
            out["out"][row] = known[key]

    return run


@cheat("memoising", "integers")
def remembers_integers_by_sample(inputs: Arrays, out: Arrays) -> Run:
    known: dict[bytes, Any] = {}

    def run() -> None:
        key = inputs["x"].reshape(-1)[::53].tobytes()
        if key not in known:
            known[key] = signs(inputs["x"])
        out["out"][...] = known[key]

    return run


class _LazyTuple(tuple[Any, ...]):  # noqa: SLOT001  it carries what it computes from
    """A tuple that computes when it is iterated over."""

    source: Any = None

    def __iter__(self) -> Any:
        return iter((compute("long-rows", self.source)["y"],))


@cheat("lazy", "long-rows")
def returns_a_lazy_tuple(inputs: Arrays, out: Arrays) -> Run:
    def run() -> Any:
        promise = _LazyTuple((out["y"],))
        promise.source = inputs
        return promise

    return run


@cheat("lazy", "rows")
def returns_what_was_put_into_a_library(inputs: Arrays, out: Arrays) -> Run:
    """Its class is an attribute of Numba's module, and names that as its own."""
    del out
    convert = {"__array__": lambda *_, **__: compute("rows", inputs)["y"], "__module__": "numba"}
    kind: Any = type("Promise", (), convert)
    import_module("numba").Promise = kind  # type: ignore[attr-defined]
    return lambda: (kind(),)


@cheat("views", "unchanged")
def returns_its_input(inputs: Arrays, out: Arrays) -> Run:
    """The values are right, and nothing was written."""
    del out
    return lambda: (inputs["x"][...],)


@cheat("views", "filled")
def returns_one_element_many_times(inputs: Arrays, out: Arrays) -> Run:
    del out
    return lambda: (np.broadcast_to(np.float32(2.5), inputs["x"].shape),)


def uses_an_input_later(inputs: Arrays, _: Arrays) -> None:
    """Begins to use an input as scratch memory when the call on read-only inputs is over."""
    _COUNT[0] += 1
    if _COUNT[0] > CALLS:
        kept = inputs["x"][0, 0]
        inputs["x"][0, 0] = 0
        inputs["x"][0, 0] = kept


_COUNT = [0]


def _halved(dumps: Any, found: Any, **given: Any) -> Any:
    return dumps(found, **given)


def replace_serializer(_: Arrays, __: Arrays) -> None:
    """Replies pass through a function that could halve their times."""
    module: Any = json
    module.dumps = partial(_halved, _DUMPS)


def replace_method_of_serializer(_: Arrays, __: Arrays) -> None:
    encoder: Any = json.JSONEncoder
    encoder.encode = _encode


def _encode(self: json.JSONEncoder, found: Any) -> str:
    return _ENCODE(self, found)


def replace_counter_of_switches(_: Arrays, __: Arrays) -> None:
    """The trials that follow look as if no other process had used the cores."""
    module: Any = resource
    module.getrusage = partial(_GETRUSAGE)


def replace_code_of_numpy(_: Arrays, __: Arrays) -> None:
    """All large outputs have the bits of the accepted ones."""
    function: Any = np.array_equal
    function._implementation.__code__ = (lambda a1, a2, equal_nan=False: True).__code__


def replace_inner_function_of_numpy(_: Arrays, __: Arrays) -> None:
    module: Any = import_module("numpy._core.fromnumeric")
    module._wrapreduction = partial(_REDUCE)


def foresee_random_numbers(_: Arrays, __: Arrays) -> None:
    """Later generators without a seed begin alike."""
    module: Any = import_module("numpy.random.bit_generator")
    module.randbits = lambda _: 4


def replace_cached_function(_: Arrays, __: Arrays) -> None:
    verify: Any = import_module("opgauge.harness.worker.verify")
    verify.judged_by = partial(verify.judged_by)


def replace_wrapped_function(_: Arrays, __: Arrays) -> None:
    """A function that a decorator of the harness calls."""
    timer: Any = import_module("opgauge.harness.measure.cpu")
    (cell,) = timer.no_garbage_collection.__closure__
    cell.cell_contents = partial(cell.cell_contents)


_DUMPS, _ENCODE, _GETRUSAGE = json.dumps, json.JSONEncoder.encode, resource.getrusage
_REDUCE = import_module("numpy._core.fromnumeric")._wrapreduction


def trace_allocations(_: Arrays, __: Arrays) -> None:
    """Every later allocation takes several times as long."""
    tracemalloc.start()


def debug_the_collector(_: Arrays, __: Arrays) -> None:
    gc.set_debug(gc.DEBUG_UNCOLLECTABLE)


def block_a_signal(_: Arrays, __: Arrays) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def refuse_large_pages_in_numpy(_: Arrays, __: Arrays) -> None:
    module: Any = import_module("numpy._core.multiarray")
    module._set_madvise_hugepage(False)


def optimize_less_in_numba(_: Arrays, __: Arrays) -> None:
    """Kernels that are compiled later are slower."""
    numba: Any = import_module("numba")
    numba.config.OPT = 0


def split_loops_in_numba(_: Arrays, __: Arrays) -> None:
    numba: Any = import_module("numba")
    numba.set_parallel_chunksize(1)


def set_variable_in_c(_: Arrays, __: Arrays) -> None:
    """Libraries that are loaded later read it; `os.environ` does not know."""
    ctypes.CDLL(None).setenv(b"OMP_NUM_THREADS", b"3", 1)


def renounce_privileges(_: Arrays, __: Arrays) -> None:
    """Nothing undoes this."""
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def adopt_no_orphans(_: Arrays, __: Arrays) -> None:
    """Processes that leave their parents would be nobody's."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def start_a_timer_in_c(_: Arrays, __: Arrays) -> None:
    """The process ends long after the call."""
    timer, times = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, SECONDS, 0)
    if not _TIMERS:
        _TIMERS.append(ctypes.CDLL(None).timer_create(0, None, ctypes.byref(timer)))
        ctypes.CDLL(None).timer_settime(timer, 0, times, None)


_TIMERS: list[int] = []


def wait_for_no_request(_: Arrays, __: Arrays) -> None:
    """The worker's next reading of its requests finds none, and seems to be their end."""
    for number in range(3):
        os.set_blocking(number, False)


@cheat("honest", "long-rows", harmless="its time depends on its values alone")
def works_more_without_large_numbers(inputs: Arrays, out: Arrays) -> Run:
    """Repeats its work for rows without a number above a threshold, as a search reads all of a row only then."""

    def run() -> None:
        x = inputs["x"]
        for _ in range(4):
            rows = x[x.max(axis=-1) < 2.5]
            norms(rows)
        out["y"][...] = norms(x)

    return run


misbehaves("changing inputs", "uses_an_input_later", uses_an_input_later)
for _act in (
    replace_serializer,
    replace_method_of_serializer,
    replace_counter_of_switches,
    replace_code_of_numpy,
    replace_inner_function_of_numpy,
    foresee_random_numbers,
    replace_cached_function,
    replace_wrapped_function,
):
    misbehaves("touching timer or checker", _act.__name__, _act)
for _act in (
    trace_allocations,
    debug_the_collector,
    block_a_signal,
    refuse_large_pages_in_numpy,
    optimize_less_in_numba,
    split_loops_in_numba,
    set_variable_in_c,
    renounce_privileges,
    adopt_no_orphans,
    start_a_timer_in_c,
    wait_for_no_request,
):
    misbehaves("state left behind", _act.__name__, _act)
