"""1x1 convolutions in 16 bits on Hopper: every kernel stays within its registers."""

from __future__ import annotations

import pytest

from opgauge.ops._cuda.gemm import cooperative, persistent, ping_pong, stationary_registers
from opgauge.ops._cuda.source import CudaSource

SOURCES = (
    persistent.SOURCE,
    ping_pong.SOURCE,
    ping_pong.LAST,
    stationary_registers.SOURCE,
    cooperative.SOURCE,
)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.path.stem)
def test_hopper_spills_nothing(source: CudaSource) -> None:
    """Every kernel compiles for the one architecture that runs it, within its registers."""
    compiled = source.compile("sm_90a")
    assert set(compiled.names) == set(source.expressions)
    assert not any(used.spill_bytes for used in compiled.resources.values())
