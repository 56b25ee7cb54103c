"""Tiles of one vector width, for tests of estimates that select between ways of a convolution on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from opgauge.ops._cpu.tile import jit


@pytest.fixture
def wide_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles as estimated for processors with AVX-512: on others another way may be the faster one. Compile nothing."""
    for name, value in {"ROWS": 12, "SHORT_ROWS": 8, "LISTED_ROWS": 8}.items():
        monkeypatch.setattr(jit, name, value)
    for name, vectors in {"tile_columns": 2, "listed_columns": 3}.items():
        monkeypatch.setattr(jit, name, partial(_columns, vectors))


def _columns(vectors: int, like: Any) -> int:
    return int(vectors * 64 // like.itemsize)
