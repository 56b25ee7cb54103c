"""1x1 convolutions in 16 bits on Hopper: every kernel stays within its registers."""

from __future__ import annotations

import pytest
from opgauge.ops._cuda.gemm import gemm_strips, gemm_sweep, gemm_tiles, gemm_turns
from opgauge.ops._cuda.source import Source

SOURCES = (
    gemm_sweep.SOURCE,
    gemm_turns.SOURCE,
    gemm_turns.LAST,
    gemm_strips.SOURCE,
    gemm_tiles.SOURCE,
)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.path.stem)
def test_hopper_spills_nothing(source: Source) -> None:
    """Every kernel compiles for the one architecture that runs it, within its registers."""
    compiled = source.compile("sm_90a")
    assert set(compiled.names) == set(source.expressions)
    assert not any(used.spill_bytes for used in compiled.resources.values())
