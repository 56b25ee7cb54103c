"""Threads and registers of a multiprocessor, and how many blocks of a kernel they allow."""

from __future__ import annotations

WARP, PARTS, REGISTERS = 32, 4, 16_384
"""Threads of a warp, parts of a multiprocessor that hold warps, and registers of each."""
SMALLER, LARGEST = {"sm_75": (1024, 16), "sm_86": (1536, 16), "sm_89": (1536, 24), "sm_120": (1536, 24)}, (2048, 32)
"""Threads and blocks that are resident on a multiprocessor, by architecture, and on all others."""


def resident_blocks(arch: str, registers: int, threads: int) -> int:
    """Blocks of a kernel that registers and threads of a multiprocessor allow."""
    whole = -(-threads // WARP) * WARP
    room, blocks = SMALLER.get(arch, LARGEST)
    warps = PARTS * (REGISTERS // (-(-registers // 8) * 8 * WARP))
    return max(1, min(blocks, room // whole, warps * WARP // whole))
