"""Probes: elements of outputs on the host that are read right after a call has returned, and again later."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from opgauge.harness.measure.timer import NOWHERE, Place
from opgauge.harness.worker.attempt import WrongError
from opgauge.harness.worker.bits import has_bits
from opgauge.harness.worker.memory_map import mapped_ranges
from opgauge.ops._core.op import Array

MADV_POPULATE_READ = 22
"""Advice of Linux 5.14 upon which the system reads pages itself; it fails where a read would raise a signal."""
PROBED = 64
"""Elements of each output that are read."""


def draw_probe(array: Any, rng: np.random.Generator, parts: Sequence[slice] | None) -> Array:
    """Flat indices of poisoned elements of an output, including the last. parts: poisoned parts; None: all of it."""
    if not isinstance(array, np.ndarray) or not array.size:
        return np.zeros(0, np.int64)
    if parts is None:
        places = rng.integers(0, array.size, PROBED)
    else:
        places = np.array([rng.integers(part.start, min(part.stop, array.size)) for part in parts])
    places[-1] = array.size - 1
    return places


def draw_place(arrays: Mapping[str, Any], probes: Mapping[str, Array], rng: np.random.Generator) -> Place:
    """A byte of a probed element of one of the outputs, and an element of the first one, often the last element.

    The last elements of returned arrays are overwritten after each sample. NOWHERE without outputs on the host.
    """
    names = [name for name, places in probes.items() if len(places)]
    if not names:
        return NOWHERE
    which, part, byte, is_last, element = rng.random(5).tolist()
    name = names[int(which * len(names))]
    array, places = arrays[name], probes[name]
    at = int(places[int(part * len(places))]) * array.itemsize + int(byte * array.itemsize)
    size = arrays[names[0]].size
    element = size - 1 if is_last < 1 / 2 else int(element * size)
    return Place(memoryview(array.reshape(-1).view(np.uint8)), at, element)


def is_same(place: Place, seen: tuple[int, Any] | None, returned: Any) -> bool:
    """Whether the values at a place are those seen before, or nobody looked; NaN is the same as NaN."""
    return seen is None or repr(seen) == repr(place.look(returned))


def read_probes(outputs: Mapping[str, Any], probes: Mapping[str, Array]) -> dict[str, Array]:
    """The probed elements of each output; none of arrays elsewhere.

    Raises WrongError if a read of an output would raise a signal, whose handler could compute.
    """
    for name, array in outputs.items():
        if isinstance(array, np.ndarray) and array.size and not _is_readable(array):
            reason = f"{name} cannot be read when the call has returned"
            raise WrongError(reason)
    return {name: _at(outputs[name], probe) for name, probe in probes.items() if name in outputs}


@cache
def _library() -> Any:
    """The C library, called without releasing the interpreter's lock: a thread that waits for it could compute then."""
    return ctypes.PyDLL(None) if sys.platform == "linux" else None


def _is_readable(array: Array) -> bool:
    """Whether the pages of an array can be read; systems cannot read those of devices themselves."""
    low, high = byte_bounds(array)
    start, library = low - low % mmap.PAGESIZE, _library()
    pages = ctypes.c_void_p(start), ctypes.c_size_t(high - start), MADV_POPULATE_READ
    if library is None or library.madvise(*pages) == 0:
        return True
    return all(one.readable for one in mapped_ranges() if one.first < high and start < one.last)


def changed_output(outputs: Mapping[str, Any], probes: Mapping[str, Array], seen: Mapping[str, Array]) -> str:
    """The name of an output whose probed elements differ from those seen before; empty without one."""
    return next((name for name, values in seen.items() if not has_bits(_at(outputs[name], probes[name]), values)), "")


def _at(array: Any, places: Array) -> Array:
    return array.reshape(-1)[places] if isinstance(array, np.ndarray) and len(places) else np.zeros(0)
