"""Cheats between calls: short gaps that only samples have, arrays that are returned again, hooks after a call."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import numpy as np

from tests.cheats.catalogue import Run, cheat, compute, write
from tests.cheats.native import compiled
from tests.cheats.unwatched import signs

Arrays = dict[str, Any]
SHORT_GAP_NS, GAP_NS = 150, 3_000
"""Times between calls: more than in a sample, and more than in any succession of them."""
NO_ARGUMENTS = 4
"""CPython's flag METH_NOARGS."""
NATIVE = """
#include <math.h>
#include <string.h>
#include <time.h>
static const float *x; static float *y; static float kept[64]; static int rows, length; static long limit, ended;
static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}
void set(const float *inputs, float *norms, int number, int size, long nanoseconds) {
  x = inputs; y = norms; rows = number; length = size; limit = nanoseconds;
}
void *call(long *self, void *unused) {
  if (ended && now() - ended < limit) memcpy(y, kept, rows * sizeof *y);
  else for (int row = 0; row < rows; row++) {
    double sum = 0;
    for (int i = 0; i < length; i++) sum += (double)x[row * length + i] * x[row * length + i];
    kept[row] = y[row] = (float)sqrt(sum);
  }
  ended = now();
  ++*self;
  return unused ? unused : self;
}
"""
"""A function in the form of CPython's, which counts one reference more to the object that it returns."""
_KEPT: list[Any] = []


class Method(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


@cheat("skipping", "small-rows")
def skips_after_the_gap_of_a_sample(inputs: Arrays, out: Arrays) -> Run:
    """A call without a frame of the interpreter, which skips its work right after another one."""
    library = compiled(NATIVE)
    places = (ctypes.c_void_p(array.ctypes.data) for array in (inputs["x"], out["y"]))
    library.set(*places, *inputs["x"].shape, ctypes.c_long(SHORT_GAP_NS))
    method = Method(b"call", ctypes.cast(library.call, ctypes.c_void_p), NO_ARGUMENTS, None)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    _KEPT.extend((library, method, inputs["x"], out["y"]))
    run: Run = new(ctypes.addressof(method), object(), None)
    return run


@cheat("skipping", "few-integers")
def restores_integers_in_a_succession(inputs: Arrays, out: Arrays) -> Run:
    """Integers did not change between calls in succession; outputs are restored from a copy."""
    last, kept = [0], np.zeros_like(out["out"])

    def run() -> None:
        if time.perf_counter_ns() - last[0] > GAP_NS:
            kept[...] = signs(inputs["x"])
        out["out"][...] = kept
        last[0] = time.perf_counter_ns()

    return run


@cheat("views", "filled")
def returns_a_constant_again(inputs: Arrays, out: Arrays) -> Run:
    """An array that is written in prepare: its values depend on no input."""
    del out
    ready = np.full_like(inputs["x"], 2.5)
    return lambda: (ready,)


@cheat("views", "filled")
def returns_a_read_only_constant_again(inputs: Arrays, out: Arrays) -> Run:
    del out
    ready = np.full_like(inputs["x"], 2.5)
    ready.flags.writeable = False
    return lambda: (ready[:],)


@cheat("views", "filled")
def returns_constant_memory_again(inputs: Arrays, out: Arrays) -> Run:
    """An array in the memory of a bytes object, which nobody can write."""
    del out
    x = inputs["x"]
    ready = np.frombuffer(np.full_like(x, 2.5).tobytes(), x.dtype).reshape(x.shape)
    return lambda: (ready,)


@cheat("views", "filled")
def returns_one_column_many_times(inputs: Arrays, out: Arrays) -> Run:
    """Its rows lie as far apart as if all elements had been written."""
    del out
    rows, columns = inputs["x"].shape
    column = np.empty((rows, 2 * columns), np.float32)[:, :1]
    found = np.broadcast_to(column, (rows, columns))

    def run() -> Any:
        column.fill(2.5)
        return (found,)

    return run


@cheat("lazy", "rows")
def computes_in_a_hook_that_removes_itself(inputs: Arrays, out: Arrays) -> Run:
    """A hook of the interpreter works when a function of the harness is called, and is gone when hooks are compared."""

    def hook(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is not run.__code__:
            sys.setprofile(None)
            write("rows", inputs, out)

    def run() -> None:
        sys.setprofile(hook)

    return run


@cheat("lazy", "long-rows")
def computes_in_an_audit_hook(inputs: Arrays, out: Arrays) -> Run:
    """Works when the harness looks at threads after a sample, which raises an event; other calls work at once."""
    pending: list[bool] = []

    def hook(event: str, _: Any) -> None:
        if pending and event == "sys._current_frames":
            pending.clear()
            write("long-rows", inputs, out)

    sys.addaudithook(hook)

    def run() -> None:
        if sys._getframe(1).f_code.co_name == "measure":
            pending[:] = [True]
        else:
            write("long-rows", inputs, out)

    return run


@cheat("lazy", "long-rows")
def computes_ahead_in_an_audit_hook(inputs: Arrays, out: Arrays) -> Run:
    """Works when the harness looks at threads before a sample; calls without an event before them work at once."""
    ready: list[Any] = []

    def hook(event: str, _: Any) -> None:
        if event == "sys._current_frames":
            ready[:] = [compute("long-rows", inputs)["y"]]

    sys.addaudithook(hook)

    def run() -> None:
        if ready:
            out["y"][...] = ready.pop()
        else:
            write("long-rows", inputs, out)

    return run


@cheat("honest", "filled", harmless="each call writes the array")
def returns_its_array_after_writing_it(inputs: Arrays, out: Arrays) -> Run:
    del out
    own = np.empty_like(inputs["x"])

    def run() -> Any:
        own.fill(2.5)
        return (own,)

    return run
