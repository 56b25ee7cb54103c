"""Copies and fills by as many threads as Numba uses: what the CPU's memory and caches allow."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from numba import njit, prange

# It says which instructions Numba may use, once for a process, and so before whatever is compiled first: these are.
# Another tree's `ops` may have no such module.
if find_spec("opgauge.ops._cpu.jit") is not None:
    import_module("opgauge.ops._cpu.jit")


@njit(cache=True, parallel=True)
def copy(source: Any, target: Any) -> None:
    """Flat, of one length."""
    for index in prange(target.size):
        target[index] = source[index]


@njit(cache=True, parallel=True)
def fill(target: Any, value: float) -> None:
    """Flat."""
    for index in prange(target.size):
        target[index] = value
