"""Footprint of one call on a CUDA device, which has no noise: its launches and its allocations.

Launches come from a captured graph of one call, so no profiler is needed: the graph's nodes are the work submitted to
the device, and the driver reports the kernels' names.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from opgauge.harness.result.result import Footprint, Measurement

COPY, FILL = "[copy]", "[fill]"
"""Names of copies and fills in a list of kernels."""
LONGEST = 500
"""Most characters of a name: names of nested templates are unbounded."""
SHORTER = (("(anonymous namespace)::", ""), ("(int)", ""), ("(bool)1", "true"), ("(bool)0", "false"), ("> >", ">>"))
"""Replacements that shorten a kernel's name."""


def graph_names(graph: Any) -> tuple[str, ...] | None:
    """Names of the kernels, copies and fills of a captured graph, in order; None if they cannot be read."""
    handle = getattr(graph, "graph", None)
    if not handle:
        return None
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    kinds = driver.CUgraphNodeType
    named = {kinds.CU_GRAPH_NODE_TYPE_MEMCPY: COPY, kinds.CU_GRAPH_NODE_TYPE_MEMSET: FILL}
    _, _, count = driver.cuGraphGetNodes(handle)
    _, nodes, _ = driver.cuGraphGetNodes(handle, count)
    names: list[str] = []
    for node in nodes[:count]:
        _, kind = driver.cuGraphNodeGetType(node)
        if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            names.append(_kernel_name(driver, node))
        elif kind in named:
            names.append(named[kind])
    return tuple(names)


def _kernel_name(driver: Any, node: Any) -> str:
    _, parameters = driver.cuGraphKernelNodeGetParams(node)
    for handle, read in ((parameters.func, driver.cuFuncGetName), (parameters.kern, driver.cuKernelGetName)):
        if handle is not None and int(handle):
            _, name = read(handle)
            if name:
                return demangle(name.decode(errors="replace"))
    return "?"


def demangle(name: str) -> str:
    """A demangled C++ name of at most `LONGEST` characters.

    Returns the name unchanged if it is not mangled or the C++ library is missing.
    """
    return _demangled(name)[:LONGEST]


def _demangled(name: str) -> str:
    read = _demangler()
    if read is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    found = read(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(found))


@cache
def _demangler() -> Any:
    """The demangler of the C++ run-time library; None without one."""
    try:
        read = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    read.restype = ctypes.c_void_p
    return read


def short_name(name: str, width: int = 80) -> str:
    """A kernel's name for a table: without return type, parameters, and namespaces of template arguments.

    `void at::flat<ns::Plus<float>, (int)4>(float const*, long)` becomes `at::flat<Plus<float>, 4>`. Unprintable
    characters become question marks.
    """
    text = name.removeprefix("void ")
    if text.endswith(")"):
        text = text[: _opening(text)]
    for long, short in SHORTER:
        text = text.replace(long, short)
    head, bracket, arguments = text.partition("<")
    text = head + bracket + re.sub(r"(\w+::)+(?=\w)", "", arguments)
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def _opening(text: str) -> int:
    """Index of the bracket that the last character closes; the length of the text if there is none."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if depth == 0:
            return place or len(text)
    return len(text)


def peak_memory(call: Callable[[], Any], xp: Any, torch: Any, synchronize: Callable[[], None]) -> tuple[int, int]:
    """Peak of device memory during one call, beyond its outputs, and the number of allocations.

    xp: CuPy. torch: the module, if it allocates; else None.
    """
    if torch is not None:
        torch.cuda.synchronize()
        before, asked = torch.cuda.memory_allocated(), _torch_allocations(torch)
        torch.cuda.reset_peak_memory_stats()
        returned = call()
        synchronize()
        outputs = sum(int(item.nbytes) for item in returned if item is not None) if returned else 0
        peak = int(torch.cuda.max_memory_allocated()) - int(before) - outputs
        return max(peak, 0), _torch_allocations(torch) - asked
    counter = memory_counter(xp)
    with counter:
        call()
        synchronize()
    return int(counter.peak), int(counter.count)


def _torch_allocations(torch: Any) -> int:
    """Number of allocations from torch's pool since the process began."""
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def memory_counter(xp: Any) -> Any:
    """A hook that records allocations from CuPy's pool, and their bytes, while it is entered."""

    class Counter(xp.cuda.MemoryHook):  # type: ignore[misc]
        name = "opgauge"
        count = 0
        peak = 0

        def __init__(self) -> None:
            self._held: dict[int, int] = {}
            self.live = 0

        def malloc_postprocess(self, *, mem_size: int, mem_ptr: int, **_: object) -> None:
            self._held[mem_ptr] = mem_size
            self.live += mem_size
            self.count += 1
            self.peak = max(self.peak, self.live)

        def free_postprocess(self, *, mem_ptr: int, **_: object) -> None:
            self.live -= self._held.pop(mem_ptr, 0)  # what was allocated before is not counted

    return Counter()


def with_resources(measurement: Measurement, used: Mapping[str, Any]) -> Measurement:
    """A measurement with the registers and spilled bytes of its kernels. used: their resources by name."""
    if not used:
        return measurement
    footprint = replace(
        measurement.footprint or Footprint(),
        registers=max(item.registers for item in used.values()),
        spill_bytes=sum(item.spill_bytes for item in used.values()),
    )
    return replace(measurement, footprint=footprint)
