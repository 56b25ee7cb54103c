"""Kernels with threads: those that only wait are honest, those that work outside the calls cheat."""

from __future__ import annotations

import _thread
import ctypes
import threading
import time
from typing import Any

import numpy as np

from tests.cheats.adaptive import norms
from tests.cheats.catalogue import Run, cheat
from tests.cheats.native import compiled

Arrays = dict[str, Any]
SLEEP_S = 0.02
"""Longer than the first call takes, shorter than a trial."""
NATIVE = """
#include <math.h>
#include <pthread.h>
#include <unistd.h>
static const float *x; static float *y; static int rows, length;
static volatile double known = NAN;
static double sample(void) {
  double sum = 0;
  for (long i = 0; i < (long)rows * length; i += 997) sum = 1.01 * sum + x[i];
  return sum;
}
static void *work(void *unused) {
  for (;; usleep(100)) {
    const double present = sample();
    if (present == known) continue;
    for (int row = 0; row < rows; row++) {
      double sum = 0;
      for (int i = 0; i < length; i++) sum += (double)x[row * length + i] * x[row * length + i];
      y[row] = (float)sqrt(sum);
    }
    known = present;
  }
  return unused;
}
int is_ready(void) { return sample() == known; }
void start(const float *inputs, float *norms, int number, int size) {
  pthread_t thread;
  x = inputs; y = norms; rows = number; length = size;
  pthread_create(&thread, 0, work, 0);
}
"""
"""A thread that computes the norms of rows whenever a sample of the inputs has changed."""
_KEPT: list[Any] = []


def _polling(inputs: Arrays, out: Arrays, begin_s: float) -> Run:
    """A kernel whose thread polls a few elements from then on, and computes between calls when they have changed."""
    ready: dict[bytes, Any] = {}

    def work() -> None:
        time.sleep(begin_s)
        while True:
            key = inputs["x"][::16, :8].tobytes()
            if key not in ready:
                ready.clear()
                ready[key] = norms(inputs["x"])
            time.sleep(0.0002)

    threading.Thread(target=work, daemon=True).start()

    def run() -> None:
        known = ready.get(inputs["x"][::16, :8].tobytes())
        out["y"][...] = norms(inputs["x"]) if known is None else known

    return run


@cheat("lazy", "long-rows")
def sleeps_first_and_computes_later(inputs: Arrays, out: Arrays) -> Run:
    """The thread waits while threads may compile."""
    return _polling(inputs, out, SLEEP_S)


@cheat("lazy", "long-rows")
def computes_when_inputs_change(inputs: Arrays, out: Arrays) -> Run:
    """The thread polls at once."""
    return _polling(inputs, out, 0.0)


@cheat("lazy", "long-rows")
def computes_in_an_unnamed_thread(inputs: Arrays, out: Arrays) -> Run:
    """A thread that `threading` does not list works when the call has returned."""
    spare: list[Any] = []
    wanted = _thread.allocate_lock()
    wanted.acquire()

    def work() -> None:
        while wanted.acquire(timeout=60):
            spare[:] = [norms(inputs["x"][-64:])]

    _thread.start_new_thread(work, ())

    def run() -> None:
        out["y"][...] = norms(inputs["x"])
        if wanted.locked():
            wanted.release()

    return run


@cheat("lazy", "long-rows")
def computes_in_a_native_thread(inputs: Arrays, out: Arrays) -> Run:
    """A thread of the C library computes the result when inputs have changed, without the interpreter."""
    ready = np.zeros(len(inputs["x"]), np.float32)
    _KEPT.extend((inputs["x"], ready))
    library = compiled(NATIVE)
    library.start(*(ctypes.c_void_p(array.ctypes.data) for array in (inputs["x"], ready)), *inputs["x"].shape)

    def run() -> None:
        out["y"][...] = ready if library.is_ready() else norms(inputs["x"])

    return run
