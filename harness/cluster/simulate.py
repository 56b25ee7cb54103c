"""Simulation of a run on a cluster by the rules of `tasks`: discrete events over recorded durations of cases."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from opgauge.harness.cluster.tasks import PER_LIGHT, PREFETCHED

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
    """The CPU processes of a host, and the cases whose references they compute or have computed: heavy and light."""

    def __init__(self, shape: Shape) -> None:
        self.slots = [0.0] * shape.reference_slots
        self.most = shape.reference_slots + PREFETCHED * shape.devices
        self.most_light = shape.reference_slots // PER_LIGHT
        self.heavy: list[tuple[float, Load]] = []
        self.light: list[tuple[float, Load]] = []

    @property
    def ahead(self) -> list[tuple[float, Load]]:
        """Cases with a reference, the heavy ones first."""
        return [*self.heavy, *self.light]

    def prefetch(self, waiting: deque[Load], now: float) -> None:
        """Take the heaviest cases and some of the lightest, and compute their references; the last one is left."""
        while len(self.heavy) + len(self.light) < self.most and len(waiting) > 1:
            is_light = len(self.light) < self.most_light
            load = waiting.pop() if is_light else waiting.popleft()
            ready = max(heapq.heappop(self.slots), now) + load.reference_s
            heapq.heappush(self.slots, ready)
            (self.light if is_light else self.heavy).append((ready, load))

    def next(self, waiting: deque[Load], now: float) -> float:
        """When a device that is free now is done with its next case; something must wait.

        The heaviest case whose reference is there, else a light one whose reference the device's process computes, else
        the first whose reference will be there.
        """
        found = next((one for one in self.ahead if one[0] <= now), None)
        if found is None and waiting:
            load = waiting.pop()
            return now + load.reference_s + load.device_s
        ready, load = self.take(found or min(self.ahead, key=itemgetter(0)))
        return max(now, ready) + load.device_s

    def take(self, one: tuple[float, Load]) -> tuple[float, Load]:
        """Remove a case from those with a reference."""
        (self.heavy if one in self.heavy else self.light).remove(one)
        return one


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
            waiting.append(fullest.take(fullest.ahead[-1])[1])
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
