"""The kernel of a trial, as the tree's `ops` registers it."""

from __future__ import annotations

from opgauge.harness.result.result import Trial
from opgauge.ops import Found, KernelNotFoundError, find_kernel, find_kernel_or_cpu


def find_trial_kernel(trial: Trial, *, cpu_fallback: bool = False) -> Found:
    """The kernel of a trial; raises KernelNotFoundError."""
    case = trial.case
    key = (case.op, trial.implementation, trial.backend, case.dtype)
    found = find_kernel_or_cpu(*key) if cpu_fallback else Found(find_kernel(*key), fell_back=False)
    if not found.kernel.strided and any(spec.layout == "transposed" for spec in case.inputs.values()):
        msg = f"{found.kernel.key} takes contiguous inputs only"
        raise KernelNotFoundError(msg)
    return found
