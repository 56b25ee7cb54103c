"""PTX wrappers: an instruction that ops/_cuda/include/ptx wraps is written nowhere else."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from opgauge.ops._cuda.source import INCLUDE

PTX = INCLUDE / "ptx"
ASM = re.compile(r'asm(?: volatile)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
MNEMONIC = re.compile(r'(?:^"|[{;"]\s*)(?:@\w+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)+)')
SHARED = {"setp.ne.b32", "selp.u32", ".reg"}
"""Instructions that wrappers need beside the one that they wrap."""


def instructions(path: Path) -> set[str]:
    """Mnemonics of the inline assembly of a source."""
    found = (MNEMONIC.findall(block) for block in ASM.findall(path.read_text(encoding="utf-8")))
    return {mnemonic for some in found for mnemonic in some} - SHARED


def test_a_wrapped_instruction_has_one_wrapper() -> None:
    """No CUDA source outside ptx/ names an instruction that a header of ptx/ wraps, and no two headers wrap one."""
    where: dict[str, set[str]] = defaultdict(set)
    sources = (*INCLUDE.parent.parent.rglob("*.cu"), *INCLUDE.parent.parent.rglob("*.cuh"))
    for path in sources:
        for mnemonic in instructions(path):
            where[mnemonic].add(path.name)
    wrapped = {mnemonic for path in PTX.glob("*.cuh") for mnemonic in instructions(path)}
    assert {"wgmma.fence.sync.aligned", "cp.async.commit_group", "setmaxnreg.inc.sync.aligned.u32"} <= wrapped
    assert {mnemonic: files for mnemonic, files in where.items() if mnemonic in wrapped and len(files) > 1} == {}
