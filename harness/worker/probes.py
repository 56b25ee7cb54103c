"""Probes: elements of outputs on the host that are read right after a call has returned, and again later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opgauge.harness.worker.bits import has_bits
from opgauge.ops._core.op import Array

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


def read_probes(outputs: Mapping[str, Any], probes: Mapping[str, Array]) -> dict[str, Array]:
    """The probed elements of each output; none of arrays elsewhere."""
    return {name: _at(outputs[name], probe) for name, probe in probes.items() if name in outputs}


def changed_output(outputs: Mapping[str, Any], probes: Mapping[str, Array], seen: Mapping[str, Array]) -> str:
    """The name of an output whose probed elements differ from those seen before; empty without one."""
    return next((name for name, values in seen.items() if not has_bits(_at(outputs[name], probes[name]), values)), "")


def _at(array: Any, places: Array) -> Array:
    return array.reshape(-1)[places] if isinstance(array, np.ndarray) and len(places) else np.zeros(0)
