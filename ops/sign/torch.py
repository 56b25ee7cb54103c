"""sign by torch and torch.compile. torch returns 0 for NaN, which only data with NaN reveals."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import COMPLEX
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel
from opgauge.ops.sign.op import DTYPES

REAL = tuple(name for name in DTYPES if name not in COMPLEX)
"""Dtypes of `torch.sign`; complex ones need `torch.sgn`."""


@kernel("sign", "torch", BACKENDS, DTYPES, prepare=True, arrays="torch")
def sign(*, x: Any, out: dict[str, Any]) -> Bound:
    """`torch.sign` (`torch.sgn` for complex numbers) into the output."""
    import torch

    function = torch.sgn if x.is_complex() else torch.sign
    result = out["out"]

    def run() -> None:
        function(x, out=result)

    return run


@kernel("sign", "torch_compile", BACKENDS, REAL, prepare=True, arrays="torch")
def sign_compiled(*, x: Any, out: dict[str, Any]) -> Bound:
    """`torch.sign`, compiled."""
    del out
    import torch

    compiled = compile_peer(torch.sign)
    return lambda: (compiled(x),)
