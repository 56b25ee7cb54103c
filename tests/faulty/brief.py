"""Preloaded into a worker: ceilings of little memory, in a hundredth of the time."""

from __future__ import annotations

from opgauge.harness.worker import ceilings

ceilings.CPU_BYTES = 1 << 18
ceilings.CPU_MATRIX = 32
