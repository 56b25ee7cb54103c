"""Implementation of p_norm (float32, porder inf, last axis) by torch.compile, which leaves a thread and a process.

Importing this module registers it, so only workers do: `LocalExecutor(preload=[…])`.
"""

from __future__ import annotations

from typing import Any

from opgauge.ops import kernel


@kernel("p_norm", "user_compiled", "cpu", ("float32",), prepare=True, arrays="torch")
def user_compiled(*, x: Any, out: dict[str, Any], **params: object) -> Any:
    """Compiled in the first call, by threads, beside the process that compiles for GPUs."""
    import torch
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    del params, out
    config.compile_threads, config.worker_start_method = 4, "subprocess"
    torch.compiler.reset()
    function = torch.compile(lambda values: values.abs().amax(-1), dynamic=False)

    def run() -> tuple[Any]:
        AsyncCompile.warm_pool()
        return (function(x),)

    return run
