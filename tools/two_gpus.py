"""Compares two GPUs of a host with one: `python -m tools.two_gpus [--cases 300] [--budget 0.1] [--runs 5] [--cpu]`.

Compiles all by all CPUs, measures the same cases on one GPU, on both and on one again, and prints the wall times, the
ratio of every trial's medians, those by the same GPU apart from those by the other one, and the result of the gate on
equal trees on the first GPU while the second measures.
`--runs 0` leaves out the gate and the second run on one GPU.
`--cpu` takes processes of the CPU instead, which tests the script on a host without GPUs and says nothing about GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import exp, log, sqrt
from os import cpu_count
from statistics import median
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

import typer

from opgauge.harness.case.case import Case
from opgauge.harness.cli.compile import compile_all
from opgauge.harness.cli.options import load, open_progress
from opgauge.harness.cluster.dispatch import dispatch
from opgauge.harness.cluster.local import local_cluster, member_options
from opgauge.harness.cluster.pool import ClusterPool
from opgauge.harness.gate.record import BASE, HEAD
from opgauge.harness.gate.run import Conditions
from opgauge.harness.gate.selection import Selection
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status, Trial
from opgauge.harness.run.runner import plan
from opgauge.harness.run.tree import Tree
from opgauge.harness.settings import ROOT
from opgauge.harness.trust.self_test import false_alarms, repeat

if TYPE_CHECKING:
    from distributed import Client

Times = dict[tuple[str, str], tuple[float, str]]
"""Median nanoseconds and the UUID of the GPU, by case id and implementation."""
GOAL = 1.8
"""Least ratio of wall times, one GPU over two."""
IMPLEMENTATIONS = ("baseline", "optimized")
"""Implementations that are measured of every case."""


@dataclass(frozen=True)
class Pairing:
    """Ratios of the times of the same trials in two runs. typical: median; spread: 5 % and 95 % quantiles."""

    trials: int
    typical: float
    spread: tuple[float, float]


def pair(first: Times, second: Times, *, same: bool) -> Pairing | None:
    """Second over first, for the trials that the same GPU, or another one, measured in both; None without any."""
    both = [(first[key], second[key]) for key in first.keys() & second.keys()]
    logs = sorted(log(after / before) for (before, gpu), (after, later_gpu) in both if (gpu == later_gpu) is same)
    if not logs:
        return None
    low, high = logs[int(0.05 * (len(logs) - 1))], logs[round(0.95 * (len(logs) - 1))]
    return Pairing(len(logs), exp(median(logs)), (exp(low), exp(high)))


def measure(client: Client, trials: Sequence[Trial], budget_s: float) -> tuple[float, Times]:
    """Wall time of the trials in seconds, and the times of the valid results."""
    begun = monotonic()
    times: Times = {}
    for one in dispatch(client, trials, Limits(budget_s=budget_s), tell=typer.echo):
        result = one.result
        if result.status is Status.OK and result.measurement is not None:
            gpu = one.environment.soft.get(f"{result.trial.device}.uuid", "")
            times[result.trial.case.id, result.trial.implementation] = result.measurement.median_ns, gpu
    return monotonic() - begun, times


@contextmanager
def busy(devices: Sequence[int], trials: Sequence[Trial], budget_s: float, *, cpu: bool) -> Iterator[None]:
    """Measure the trials again and again on these devices meanwhile."""
    stop = Event()

    def work() -> None:
        with cluster(devices, cpu=cpu) as client:
            while not stop.is_set():
                for _ in dispatch(client, trials, Limits(budget_s=budget_s)):
                    if stop.is_set():
                        break

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cluster(devices: Sequence[int], *, cpu: bool) -> AbstractContextManager[Client]:
    """A cluster of these GPUs, or of as many processes of the CPU."""
    return local_cluster(member_options([], cpu_slots=len(devices)) if cpu else member_options(devices))


def check_gate(trials: Sequence[Trial], selection: Selection, runs: int, budget_s: float, *, cpu: bool) -> str:
    """The false alarms of the gate on equal trees on the first device, while the second device measures or rests."""
    tree = Tree(ROOT, "", "this tree")
    lines = []
    for name in ("rests", "measures"):
        with (
            cluster([0], cpu=cpu) as client,
            ClusterPool(client, selection.devices[0], {BASE: tree, HEAD: tree}) as pool,
        ):
            if name == "measures":
                with busy([1], trials, budget_s, cpu=cpu):
                    found = false_alarms(list(repeat(pool, selection, Conditions(profile=False), runs)))
            else:
                found = false_alarms(list(repeat(pool, selection, Conditions(profile=False), runs)))
        lines.append(
            f"the other device {name}: {found['slower'] + found['faster']} false alarms, "
            f"{found['undecided']} undecided of {found['decisions']} decisions"
        )
    return "\n".join(lines)


def chosen_cases(count: int) -> list[Case]:
    """The shipped cases tagged `seed`, then others in equal steps over the files, so that all ops take part."""
    cases = load(None)
    chosen = [case for case in cases if "seed" in case.tags][:count]
    others, wanted = [case for case in cases if "seed" not in case.tags], count - len(chosen)
    return chosen + [others[number * len(others) // wanted] for number in range(min(wanted, len(others)))]


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=300)
    options.add_argument("--budget", type=float, default=0.1)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--cpu", action="store_true")
    given = options.parse_args()
    device = "cpu" if given.cpu else "cuda:0"
    trials = plan(chosen_cases(given.cases), implementations=IMPLEMENTATIONS, devices=[device])
    compile_all(trials, cpu_count() or 1, open_progress("plain", quiet=True)(len(trials)))
    walls, times = [], []
    for devices in ([0], [0, 1], [0])[: 3 if given.runs else 2]:
        with cluster(devices, cpu=given.cpu) as client:
            wall_s, found = measure(client, trials, given.budget)
        walls.append(wall_s)
        times.append(found)
        typer.echo(f"{len(devices)} device(s): {len(found)} of {len(trials)} trials in {wall_s:.1f} s")
    once = walls[0] if len(walls) == 2 else sqrt(walls[0] * walls[2])
    typer.echo(f"wall time, one over two: {once / walls[1]:.2f} (goal {GOAL})")
    for name, found in zip(("two devices / one", "one device twice"), times[1:], strict=False):
        for same in (True, False):
            if pairing := pair(times[0], found, same=same):
                where = f"{'the same' if same else 'another'} GPU, {pairing.trials} trials"
                typer.echo(f"{name}, {where}: typical {pairing.typical:.4f}, 5-95 % {pairing.spread}")
    if not given.runs:
        return
    selection = Selection(ops=("sign",), tags=("smoke",), devices=(device,))
    typer.echo(check_gate(trials, selection, given.runs, given.budget, cpu=given.cpu))


if __name__ == "__main__":
    main()
