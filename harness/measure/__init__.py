"""Timing of a call, by backend."""

from __future__ import annotations

from opgauge.harness.measure.timer import Hooks, Limits, Timed, Timer, UnfinishedError


def timer_for(backend: str, device_index: int = 0, block: int = 0) -> Timer:
    """The timer of `backend`; imports no GPU library unless needed.

    block: number of the process; on a GPU, buffers of different processes lie in different pages (see CudaTimer).
    """
    if backend == "cpu":
        from opgauge.harness.measure.cpu import CpuTimer

        return CpuTimer()
    from opgauge.harness.measure.cuda import CudaTimer

    return CudaTimer(device_index, block)


__all__ = ["Hooks", "Limits", "Timed", "Timer", "UnfinishedError", "timer_for"]
