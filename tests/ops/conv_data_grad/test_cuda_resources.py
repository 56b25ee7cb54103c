"""1x1 convolutions in 16 bits on Hopper: every kernel stays within its registers."""

from __future__ import annotations

import pytest

from opgauge.ops._cuda.gemm.launch import TEMPLATES
from opgauge.ops._cuda.source import CudaSource

SOURCES = tuple(
    TEMPLATES[name].source
    for name in ("persistent", "ping_pong", "b_stationary_shared", "a_stationary_registers", "cooperative")
)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.path.stem)
def test_hopper_spills_nothing(source: CudaSource) -> None:
    """Every kernel compiles for the one architecture that runs it, within its registers."""
    compiled = source.compile("sm_90a")
    assert set(compiled.names) == set(source.expressions)
    assert not any(used.spill_bytes for used in compiled.resources.values())
