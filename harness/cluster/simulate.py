"""Simulation of a run on a cluster: discrete events over recorded durations of cases."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MESSAGES_PER_CASE = 6
"""Messages to and from the scheduler: two tasks (reference and case) submitted, started and finished."""


@dataclass(frozen=True, slots=True)
class Load:
    """One case. device_s: all its implementations on a device; reference_s: its inputs and reference on one CPU."""

    device_s: float
    reference_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster.

    devices: per host. reference_slots: CPU processes per host. latency_s: from a result to the next case's start.
    """

    hosts: int
    devices: int
    reference_slots: int = 4
    latency_s: float = 0.02


@dataclass(frozen=True, slots=True)
class Simulated:
    """Outcome of a simulation.

    makespan_s: of the whole run. bound_s: no schedule is shorter (device work over devices, reference work over
    their slots, or the longest case with its reference). busy: share of device time that measures. messages_per_s:
    mean, at the scheduler.
    """

    makespan_s: float
    bound_s: float
    busy: float
    messages_per_s: float


def simulate(loads: Sequence[Load], shape: Shape) -> Simulated:
    """Schedule the longest case first on the next free device, its reference computed on the same host before it."""
    waiting = deque(sorted(loads, key=lambda load: -load.device_s))
    devices = [(0.0, host) for host in range(shape.hosts) for _ in range(shape.devices)]
    slots = [[0.0] * shape.reference_slots for _ in range(shape.hosts)]
    heapq.heapify(devices)
    end = 0.0
    while waiting:
        free, host = heapq.heappop(devices)
        load = waiting.popleft()
        ready = heapq.heappop(slots[host]) + load.reference_s
        heapq.heappush(slots[host], ready)
        finished = max(free, ready) + load.device_s
        end = max(end, finished)
        heapq.heappush(devices, (finished + shape.latency_s, host))
    return _summary(loads, shape, end)


def _summary(loads: Sequence[Load], shape: Shape, makespan_s: float) -> Simulated:
    count = shape.hosts * shape.devices
    work, references = sum(load.device_s for load in loads), sum(load.reference_s for load in loads)
    longest = max((load.reference_s + load.device_s for load in loads), default=0.0)
    bound = max(work / count, references / (shape.hosts * shape.reference_slots), longest)
    per_second = 1 / makespan_s if makespan_s else 0.0
    return Simulated(makespan_s, bound, work / count * per_second, MESSAGES_PER_CASE * len(loads) * per_second)
