"""Products of matrices on a CPU: threads of BLAS only while other processes leave them a processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from opgauge.ops._cpu import blas


def counts() -> list[int]:
    """Threads of each loaded BLAS."""
    return [one.num_threads for one in ThreadpoolController().select(user_api="blas").lib_controllers]


class Host:
    """A host whose processors are free or not."""

    def __init__(self, *, free: bool) -> None:
        self.free = free

    def leaves_processors(self) -> bool:
        """As it was made."""
        return self.free


@pytest.mark.parametrize("free", [False, True])
def test_a_product_waits_for_no_thread_beside_others(monkeypatch: pytest.MonkeyPatch, free: bool) -> None:
    """One thread of BLAS beside busy processes, else as many as before; their number is the same after."""
    seen: list[list[int]] = []
    multiply = np.matmul

    def watched(*arguments: Any, **named: Any) -> Any:
        seen.append(counts())
        return multiply(*arguments, **named)

    monkeypatch.setattr(blas, "HOST", Host(free=free))
    monkeypatch.setattr(np, "matmul", watched)
    first, second, out = np.ones((3, 4)), np.full((4, 5), 2.0), np.empty((3, 5))
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = counts()
        assert blas.matmul(first, second, out=out) is out
        assert counts() == before
    assert (out == 8).all()
    assert seen == [before if free else [1] * len(before)]
    assert max(before, default=2) == 2
