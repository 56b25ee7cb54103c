"""Number of threads of a CPU kernel, and their runtime; one rule for all ops.

`parallel` compiles a kernel twice on demand: without threads, and with them. `count` chooses:

    threads = count(bytes_moved)
    return partial(jit.scale_flat.on(threads), source, target)

Numba's OpenMP runtime ends a parallel loop with a barrier, at which the caller waits for every thread, even for one
that is not scheduled yet. On a host with one other busy process that costs hundreds of microseconds.
oneTBB steals work: the caller runs every task that no other thread has begun. `load_runtime` selects it for Numba.
While other processes use the processors, kernels run in the calling thread: see `opgauge.ops._cpu.load`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from opgauge.ops._cpu.load import HOST

BYTES_PER_NS = 32.0
"""Bytes that one thread moves in a nanosecond from its second-level cache."""
OPERATIONS_PER_NS = 8.0
"""Vectorised arithmetic operations of one thread in a nanosecond."""
PAYS_NS = 40_000.0
"""Time on one thread below which a second thread wakes too late to help: starting and waking one take 5 to 30 us."""
WITHOUT_STEALING = 4.0
"""Factor of that time for runtimes without work stealing, which wait for threads that have not begun."""


@cache
def load_runtime() -> bool:
    """Load oneTBB for Numba, which looks it up by its soname; False if it is not installed."""
    if sys.platform == "darwin":
        return False
    from importlib.metadata import PackageNotFoundError, distribution

    name = "tbb12.dll" if sys.platform == "win32" else "libtbb.so.12"
    try:
        files = distribution("tbb").files or []
    except PackageNotFoundError:
        return False
    for file in files:
        if file.name == name:
            try:
                ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                return False
            return True
    return False


def count(bytes_moved: float, operations: float = 0.0) -> int:
    """Threads for a kernel that moves `bytes_moved` and computes `operations`: 1 below the size where more pay.

    A logarithm, an exponential function or a power counts as 16 operations, a conversion of a 16-bit float as 2.
    """
    from numba import get_num_threads

    least = PAYS_NS if load_runtime() else PAYS_NS * WITHOUT_STEALING
    estimated = max(bytes_moved / BYTES_PER_NS, operations / OPERATIONS_PER_NS)
    return int(get_num_threads()) if estimated >= least else 1


def pieces_for(threads: int, each: int) -> int:
    """Pieces to divide work in: `each` per thread, so that loads are balanced, or one where no thread is started."""
    return each * threads if threads > 1 else 1


class Parallel:
    """A Numba kernel with loops over `prange`, compiled without threads, with them, or both, when first used."""

    def __init__(self, function: FunctionType, options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        self._compiled: dict[bool, Any] = {}
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def on(self, threads: int) -> Any:
        """The function for that many threads; 1 runs in the calling thread, others while processors are free."""
        if threads == 1:
            return self.compiled(several=False)
        with_threads = self.compiled(several=True)

        def run(*arguments: Any) -> Any:
            if HOST.leaves_processors():
                return with_threads(*arguments)
            return self.compiled(several=False)(*arguments)

        return run

    def compiled(self, *, several: bool) -> Any:
        """Numba's function for several threads or one."""
        if several not in self._compiled:
            from numba import njit

            function = self._function if several else _serial(self._function)
            self._compiled[several] = njit(cache=True, parallel=several, **self._options)(function)
        return self._compiled[several]

    def __call__(self, *arguments: Any) -> Any:
        """Run on all threads."""
        return self.on(2)(*arguments)


def parallel(**options: Any) -> Callable[[Any], Parallel]:
    """Decorate a kernel for Numba; options of `numba.njit`, except `parallel` and `cache`."""
    return lambda function: Parallel(function, options)


def _serial(function: FunctionType) -> FunctionType:
    """The same code for one thread, under another name: Numba's cache on disk tells functions apart by name and line.

    Its thread is 0 without asking: code from the cache would ask a runtime that nothing has started, and crash.
    """
    name = f"{function.__name__}_serial"
    variables = {**function.__globals__, "get_thread_id": _only_thread()}
    copy = FunctionType(
        function.__code__.replace(co_name=name), variables, name, function.__defaults__, function.__closure__
    )
    copy.__qualname__ = name
    copy.__module__ = function.__module__
    return copy


@cache
def _only_thread() -> Any:
    """A compiled function that returns the number of the only thread."""
    from numba import njit

    return njit(lambda: 0)
