"""Cheats that compute when the clock has stopped, end the loop of a sample, or know more than the auditor expects."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import zlib
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from tests.cheats.adaptive import norms
from tests.cheats.between import Method
from tests.cheats.catalogue import Run, cheat
from tests.cheats.native import compiled

Arrays = dict[str, Any]
LONG_NS = 1_200_000
"""Time of a call, so that a sample has one."""
CHECKER = "harness/worker"
"""Part of the path of code that runs when the clock has stopped."""
STEP, MOST_CUTS, NEAR = 1024, 12, 1e-5
"""Elements per one that is looked at, most differences between neighbours among these, and what counts as equal."""
PAGES = """
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#define PAGE 4096UL
static const float *a, *b; static float *y; static char *first; static long size, bytes, left;
static struct sigaction old;
static void fill(char *page) {
  long at = ((long)page - (long)y) / 4;
  for (int i = 0; i < 1024; i++, at++) if (at >= 0 && at < size) y[at] = a[at] + b[at];
}
static void fault(int number, siginfo_t *found, void *unused) {
  char *page = (char *)((unsigned long)found->si_addr & -PAGE);
  mprotect(page, PAGE, PROT_READ | PROT_WRITE);
  fill(page);
  if (--left == 0) sigaction(SIGSEGV, &old, 0);
}
void set(const float *x, const float *z, float *out, long number) {
  a = x; b = z; y = out; size = number;
  first = (char *)(((unsigned long)out + PAGE - 1) & -PAGE);
  bytes = ((unsigned long)(out + number) & -PAGE) - (unsigned long)first;
}
void start(void) {
  struct sigaction new;
  memset(&new, 0, sizeof new);
  new.sa_sigaction = fault;
  new.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &new, left > 0 ? 0 : &old);
  left = bytes / PAGE;
  fill((char *)((unsigned long)y & -PAGE));
  fill(first + bytes);
  mprotect(first, bytes, PROT_NONE);
}
"""
"""A sum whose pages are computed by the handler of a fault when they are read; the handler removes itself."""
CLOCK = """
#include <time.h>
void *PyLong_FromLongLong(long long);
void *now(void *self, void *unused) {
  static long begun;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  const long present = t.tv_sec * 1000000000 + t.tv_nsec;
  if (!begun) begun = present;
  return PyLong_FromLongLong(begun + (present - begun) / 2);
}
"""
"""A clock of half the speed, in the form of CPython's functions."""
_KEPT: list[Any] = []


def _spin() -> None:
    end = time.perf_counter_ns() + LONG_NS
    while time.perf_counter_ns() < end:
        pass


@cheat("lazy", "long-rows")
def computes_in_a_pending_call(inputs: Arrays, out: Arrays) -> Run:
    """The interpreter calls a function of C between instructions, which works when the clock has stopped."""
    add = ctypes.pythonapi.Py_AddPendingCall

    def later(_: Any) -> int:
        if CHECKER in sys._getframe(1).f_code.co_filename:
            out["y"][...] = norms(inputs["x"])
        else:
            add(function, None)
        return 0

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(later)
    _KEPT.append(function)

    def run() -> None:
        _spin()
        add(function, None)

    return run


@cheat("lazy", "long-rows")
def computes_in_a_hook_after_a_long_call(inputs: Arrays, out: Arrays) -> Run:
    """Outputs of calls that make a sample each were not looked at before functions of the harness were called."""

    def hook(frame: Any, event: str, _: Any) -> None:
        if event == "call" and CHECKER in frame.f_code.co_filename:
            sys.setprofile(None)
            out["y"][...] = norms(inputs["x"])

    def run() -> None:
        _spin()
        sys.setprofile(hook)

    return run


@cheat("lazy", "huge-sum")
def computes_pages_when_they_are_read(inputs: Arrays, out: Arrays) -> Run:
    library = compiled(PAGES)
    arrays = inputs["in_0"], inputs["in_1"], out["out"]
    library.set(*(ctypes.c_void_p(array.ctypes.data) for array in arrays), ctypes.c_long(out["out"].size))
    _KEPT.extend((library, arrays))

    def run() -> None:
        _spin()
        library.start()

    return run


@cheat("detecting samples", "small-rows")
def ends_the_loop_of_a_sample(inputs: Arrays, out: Arrays) -> Run:
    """Finds the iterator of the timer's loop among the youngest objects, and exhausts it."""

    def run() -> None:
        out["y"][...] = norms(inputs["x"])
        if not gc.isenabled():
            for one in gc.get_objects(0):
                if type(one) is repeat:
                    all(True for _ in one)

    return run


@cheat("touching timer or checker", "long-rows")
def replaces_the_clock_in_c(inputs: Arrays, out: Arrays) -> Run:
    """The function keeps its identity, and calls other code."""
    library = compiled(CLOCK)
    _KEPT.append(library)
    address = ctypes.c_void_p.from_address(id(time.perf_counter_ns) + object.__basicsize__).value or 0

    def run() -> None:
        out["y"][...] = norms(inputs["x"])
        Method.from_address(address).function = ctypes.cast(library.now, ctypes.c_void_p).value

    return run


@cheat("memoising", "two-rows")
def knows_what_is_drawn(inputs: Arrays, out: Arrays) -> Run:
    """Sets all generators of random numbers to one state in each call: values repeat."""
    known: dict[int, Any] = {}
    generators: list[Any] = []

    def run() -> None:
        if not generators:
            generators.extend(one for one in gc.get_objects() if isinstance(one, np.random.Generator))
        key = zlib.crc32(inputs["x"][:, ::16].tobytes())
        if key not in known:
            known[key] = norms(inputs["x"])
        out["y"][...] = known[key]
        for one in generators:
            one.bit_generator.state = np.random.PCG64(1).state

    return run


def _cuts(ratios: Any) -> Any:
    """Places where a ratio differs from the one before it."""
    return np.flatnonzero(~(np.abs(np.diff(ratios)) <= NEAR * np.abs(ratios[1:])))


@cheat("memoising", "huge-row")
def derives_its_result_from_known_parts(inputs: Arrays, out: Arrays) -> Run:
    """Finds by some elements which parts of known values were multiplied by what, and adds known sums of them."""
    first: Arrays = {}

    def run() -> None:
        x = inputs["x"].reshape(-1)
        if not first:
            first.update(x=x.copy(), sums=np.concatenate([[0], np.cumsum(x, dtype=np.float64)]))
        cuts = _cuts(x[::STEP] / first["x"][::STEP])
        if len(cuts) > MOST_CUTS:
            out["out"][...] = np.mean(x, dtype=np.longdouble)
            return
        _spin()
        bounds = [0]
        for start in [*(STEP * cuts), (x.size - 1) // STEP * STEP]:
            part = slice(start, start + STEP + 1)
            bounds += (start + 1 + _cuts(x[part] / first["x"][part])).tolist()
        total = 0.0
        for low, high in pairwise((*bounds, x.size)):
            some = slice(low, high, max(1, (high - low) // 64))
            factor = np.mean(x[some].astype(np.float64) / first["x"][some])
            total += factor * (first["sums"][high] - first["sums"][low])
        out["out"][...] = total / x.size

    return run


@cheat("lazy", "long-rows")
def returns_what_a_hook_computes(inputs: Arrays, out: Arrays) -> Run:
    """An array of its own, to which a hook writes when the clock has stopped."""

    def run() -> tuple[Any]:
        _spin()
        found = np.empty_like(out["y"])

        def hook(frame: Any, event: str, _: Any) -> None:
            if event == "call" and CHECKER in frame.f_code.co_filename:
                sys.setprofile(None)
                found[...] = norms(inputs["x"])

        sys.setprofile(hook)
        return (found,)

    return run
