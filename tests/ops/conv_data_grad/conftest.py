"""Tiles of one vector width, for tests of estimates that select between ways of a convolution on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from opgauge.ops._cpu.tile import jit


@pytest.fixture
def wide_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles as estimated for processors with AVX-512: on others another way may be the faster one. Compile nothing."""
    monkeypatch.setattr(jit, "ROWS", 12)
    monkeypatch.setattr(jit, "tile_columns", _columns)


def _columns(like: Any) -> int:
    return int(2 * 64 // like.itemsize)
