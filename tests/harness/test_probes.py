"""Outputs are looked at when a call has returned: their memory has to be readable, and their values to stay."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pytest

from opgauge.harness.worker import probes
from opgauge.harness.worker.attempt import WrongError
from opgauge.ops._core.op import Array


@pytest.fixture
def protected() -> Iterator[Array]:
    """An array of three pages, of which the second one cannot be read."""
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    found = np.frombuffer(memory, np.float32)
    second = ctypes.c_void_p(found.ctypes.data + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)
    ctypes.CDLL(None).mprotect(*second, 0)
    yield found
    ctypes.CDLL(None).mprotect(*second, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("advice", [probes.MADV_POPULATE_READ, -1])
def test_outputs_that_cannot_be_read_are_refused(
    protected: Array, advice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system does not read pages itself, as those of devices and on older kernels."""
    monkeypatch.setattr(probes, "MADV_POPULATE_READ", advice)
    assert probes.read_probes({"y": np.zeros(5)}, {"y": np.array([4])})["y"] == [0]
    with pytest.raises(WrongError, match="y cannot be read"):
        probes.read_probes({"y": protected}, {"y": np.array([0])})


def test_a_place_is_the_same_until_it_is_written() -> None:
    """In the outputs and in an array that was returned, NaN included."""
    out, own = np.full(3, np.nan, np.float32), np.full(1, np.nan)
    place = probes.draw_place({"y": out}, {"y": np.array([1])}, np.random.default_rng(1))._replace(element=0)
    seen = place.look((own,))
    assert probes.is_same(place, seen, (own,))
    out[0] = 1
    assert probes.is_same(place, seen, (own,))
    own[0] = 1
    assert not probes.is_same(place, seen, (own,))
