"""CUDA sources translated to PTX and no further: what NVRTC itself does, a third of the work of making a binary.

By NVRTC's own functions: `cuda.core` asks the driver, which is not everywhere, whether it could load PTX.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from cuda.bindings import nvrtc

from opgauge.ops import CompileError
from opgauge.ops._cuda.source import CudaSource, program_options

_BY_HAND = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.DOTALL)
_CLUSTER = re.compile(r"[.%:]\w*cluster")
_ENTRY = re.compile(r"\.entry (\w+)")
_STATEMENT = re.compile(r"[;{}\n]")
_INSTRUCTION = re.compile(r"(?:@!?%?\w+\s+)?([a-z]\w*(?:[.:]+\w+)*)(?:\s|$)")


@dataclass(frozen=True)
class Translated:
    """PTX, and by name expression the kernels that it holds."""

    ptx: str
    names: dict[str, str]

    def body(self, expression: str) -> str:
        """The kernel of `expression`."""
        _, _, text = self.ptx.partition(f".entry {self.names[expression]}(")
        return text.partition(".entry ")[0]

    def has_clusters(self) -> bool:
        """Whether a directive, a register or a state space is of clusters of blocks."""
        return _CLUSTER.search(self.ptx) is not None

    def instructions_by_hand(self) -> set[str]:
        """Instructions written as PTX in the source or in CUDA's headers, which NVRTC passes on unread."""
        statements = (one.strip() for block in _BY_HAND.findall(self.ptx) for one in _STATEMENT.split(block))
        found = (_INSTRUCTION.match(one) for one in statements)
        return {one[1] for one in found if one is not None}


def translate(source: CudaSource, architecture: str, expressions: tuple[str, ...], *, draft: bool = True) -> Translated:
    """A draft of `expressions`, or as they are run; raises CompileError with NVRTC's log."""
    virtual = architecture.replace("sm_", "compute_")  # for a real one it would go on to a binary
    options = program_options(source.path, virtual, source.options, draft=draft).as_bytes("nvrtc", "ptx")
    program = _given(nvrtc.nvrtcCreateProgram(source.path.read_bytes(), str(source.path).encode(), 0, [], []))
    for expression in expressions:
        nvrtc.nvrtcAddNameExpression(program, expression.encode())
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(_given(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        msg = f"{source.path.name} for {architecture}: {log.decode()}"
        raise CompileError(msg)
    text = bytes(_given(nvrtc.nvrtcGetPTXSize(program)))
    nvrtc.nvrtcGetPTX(program, text)
    ptx = text.decode()
    lowered = {one: _given(nvrtc.nvrtcGetLoweredName(program, one.encode())).decode() for one in expressions}
    nvrtc.nvrtcDestroyProgram(program)
    entries = set(_ENTRY.findall(ptx))
    return Translated(ptx, {one: name for one, name in lowered.items() if name in entries})


def _given(answer: tuple[Any, Any]) -> Any:
    """What a function of the bindings answers besides its result."""
    result, value = answer
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(str(result))
    return value
