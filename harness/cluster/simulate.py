"""Simulation of a run on a cluster by the rules of `tasks`: discrete events over recorded durations of cases."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from opgauge.harness.cluster.tasks import PREFETCHED

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

    makespan_s: of the whole run. bound_s: no schedule is shorter (device work over devices, all work over devices and
    slots, or the longest case with its reference). busy: share of device time that measures. messages_per_s: mean, at
    the scheduler.
    """

    makespan_s: float
    bound_s: float
    busy: float
    messages_per_s: float


class _Host:
    """The CPU processes of a host, and the cases whose references they compute or have computed."""

    def __init__(self, shape: Shape) -> None:
        self.slots = [0.0] * shape.reference_slots
        self.most = shape.reference_slots + PREFETCHED * shape.devices
        self.ahead: list[tuple[float, Load]] = []

    def prefetch(self, waiting: deque[Load], now: float) -> None:
        """Take the heaviest cases and compute their references; not of the last one, for the free device."""
        while len(self.ahead) < self.most and len(waiting) > 1:
            load = waiting.popleft()
            ready = max(heapq.heappop(self.slots), now) + load.reference_s
            heapq.heappush(self.slots, ready)
            self.ahead.append((ready, load))

    def next(self, waiting: deque[Load], now: float) -> float:
        """When a device that is free now is done with its next case; something must wait.

        The heaviest case whose reference is there, else a light one whose reference the device's process computes, else
        the heaviest.
        """
        place = next((place for place, (ready, _) in enumerate(self.ahead) if ready <= now), None)
        if place is None and waiting:
            load = waiting.pop()
            return now + load.reference_s + load.device_s
        ready, load = self.ahead.pop(place or 0)
        return max(now, ready) + load.device_s


def simulate(loads: Sequence[Load], shape: Shape) -> Simulated:
    """Schedule the case with the longest reference first."""
    waiting = deque(sorted(loads, key=lambda load: (-load.reference_s, -load.device_s)))
    hosts = [_Host(shape) for _ in range(shape.hosts)]
    devices = [(0.0, host) for host in range(shape.hosts) for _ in range(shape.devices)]
    end = 0.0
    while devices:
        now, host = heapq.heappop(devices)
        hosts[host].prefetch(waiting, now)
        if not waiting and not hosts[host].ahead:
            # what waits for another host is taken from it, and its reference computed again
            fullest = max(hosts, key=lambda one: len(one.ahead))
            if not fullest.ahead:
                continue
            waiting.append(fullest.ahead.pop()[1])
        done = hosts[host].next(waiting, now)
        end = max(end, done)
        heapq.heappush(devices, (done + shape.latency_s, host))
    return _summary(loads, shape, end)


def _summary(loads: Sequence[Load], shape: Shape, makespan_s: float) -> Simulated:
    count, slots = shape.hosts * shape.devices, shape.hosts * shape.reference_slots
    work, references = sum(load.device_s for load in loads), sum(load.reference_s for load in loads)
    longest = max((load.reference_s + load.device_s for load in loads), default=0.0)
    bound = max(work / count, (work + references) / (count + slots), longest)
    per_second = 1 / makespan_s if makespan_s else 0.0
    return Simulated(makespan_s, bound, work / count * per_second, MESSAGES_PER_CASE * len(loads) * per_second)
