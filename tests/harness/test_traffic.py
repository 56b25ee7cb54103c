"""Kernels of a GPU's ceilings move all bytes, in every way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.harness.measure import traffic
from opgauge.harness.measure.traffic import RESIDENT_BLOCKS, THREADS, Traffic
from opgauge.ops import available
from tests.fake_cuda import FakeCuda

NBYTES = (48, 16 << 10, (4 << 20) + 16, 48 << 20)


@pytest.mark.parametrize("nbytes", NBYTES)
def test_grids_are_of_a_word_or_more_per_thread(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Each word by a thread of its own, eight by one, or as many blocks as reside on the device."""
    launched: list[tuple[int, Any]] = []

    def get_function(name: str) -> Any:
        return lambda grid, block, arguments: launched.append((grid[0] * block[0], arguments[-1]))

    fake = FakeCuda()
    monkeypatch.setattr(fake, "RawModule", lambda **_: SimpleNamespace(get_function=get_function))
    monkeypatch.setattr(traffic, "cupy", lambda: fake)
    memory = fake.zeros(1, np.uint8).data
    memory.ptr = 0
    for launch in Traffic(0).copies(memory, memory, nbytes):
        launch()
    threads, kept = {one for one, _ in launched}, {int(most) for _, most in launched}
    words = nbytes // 16
    assert words <= max(threads) < words + THREADS
    assert words <= 8 * min(threads) or RESIDENT_BLOCKS * THREADS * 132 in threads
    assert min(kept) == 0
    assert max(kept) >= words
    assert fake.log == ["copy"]


@pytest.mark.gpu
@pytest.mark.parametrize("nbytes", NBYTES)
def test_copies_and_fills_write_all_bytes_and_no_more(nbytes: int) -> None:
    """Each way leaves the source's bytes, or those of the fill, and nothing beyond them."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    import cupy as xp

    made, beyond = Traffic(0), 64
    source = xp.arange(nbytes + beyond, dtype=xp.uint32).astype(xp.uint8)
    target = xp.zeros_like(source)
    for launch in made.copies(source.data, target.data, nbytes):
        target[:] = 7
        launch()
        assert bool((target[:nbytes] == source[:nbytes]).all())
        assert bool((target[nbytes:] == 7).all())
    words = nbytes // 48
    for launch in made.adds(source.data, target.data, nbytes):
        target[:] = 7
        launch()
        one, two, out = (each[: words * 16].view(xp.uint32) for each in (source, source[words * 16 :], target))
        assert bool((out == one + two).all())
        assert bool((target[words * 16 :] == 7).all())
    for launch in made.fills(target.data, nbytes):
        target[:] = 7
        launch()
        assert not bool((target[:nbytes] == 7).any())
        assert bool((target[nbytes:] == 7).all())
    for launch in made.reads(source.data, nbytes):
        launch()
    xp.cuda.runtime.deviceSynchronize()
