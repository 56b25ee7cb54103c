"""Cost of the checks that a timed call did its work, by check: `python -m tools.audit_cost --tag seed`.

Runs the trials of the chosen cases as `opgauge run` does, in a worker that imports this module and times the checks,
and prints a table: wall and CPU seconds of each check and its share of all seconds in the worker. With
`--against FOLDER`, each case also runs on the harness of another checkout that has this tool, in alternating order.
`--cpu-clock` replaces the worker's clock by its CPU time, so that a busy host measures as many samples as a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.settings import ROOT, Settings
from opgauge.harness.worker.interleave import TURNS, sampled_s

TARGET = "OPGAUGE_AUDIT_COST"
"""Variable that names the file to which a worker writes."""
CLOCK = "OPGAUGE_AUDIT_CLOCK"
"""Variable that replaces the worker's clock by its CPU time."""
WORKER = "opgauge.harness.worker."
TIMED = {
    "bench:Bench.run": "other",
    "interleave:interleave": "other",
    "bench:observe": "state before and after a trial",
    "damage:restore": "state before and after a trial",
    "bench:find_variation": "finding a variation",
    "held:check_emphasis": "emphasized inputs",
    "bench:Audit.before": "change and poison before a sample",
    "bench:Audit.after": "compare and undo after a sample",
    "single_calls:check_succession": "calls in succession",
    "bench:check_idle": "threads between calls",
    "single_calls:check_single_calls": "single calls",
    "single_calls:check_samples": "single calls",
}
"""Name of the row by function, given as module of the worker, and name in it."""
SAMPLES, OTHER, ALL = "samples", "other", "all"
"""Rows besides the checks: the timed samples, everything else of a trial, and the sum."""


@dataclass
class Costs:
    """Seconds by row: wall and CPU time. failed: trials without a time."""

    wall_s: Counter[str] = field(default_factory=Counter)
    cpu_s: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, results: Iterable[Result]) -> None:
        """Count results, and move the seconds of their samples to a row of their own."""
        for result in results:
            self.trials += 1
            taken = result.measurement
            if result.status is not Status.OK or taken is None:
                self.failed.append(f"{result.trial}: {result.reason}")
                continue
            cpu_s = sum(taken.cpu_ns) * taken.calls_per_sample / 1e9
            self.wall_s.update({SAMPLES: sampled_s(taken), OTHER: -sampled_s(taken)})
            self.cpu_s.update({SAMPLES: cpu_s, OTHER: -cpu_s})

    def read(self, file: Path) -> None:
        """Count the seconds that a worker has written, and empty its file."""
        for line in file.read_text(encoding="ascii").splitlines():
            spent = json.loads(line)
            self.wall_s.update(spent["wall_s"])
            self.cpu_s.update(spent["cpu_s"])
        file.write_text("")

    def __iadd__(self, other: Costs) -> Self:
        """Count the trials of another object too."""
        for row in {*self.wall_s, *other.wall_s}:
            self.wall_s[row] += other.wall_s[row]
            self.cpu_s[row] += other.cpu_s[row]
        self.trials += other.trials
        self.failed += other.failed
        return self

    def share(self, *, cpu: bool = False) -> float:
        """Share of the checks in the wall time, or in the CPU time."""
        spent_s = self.cpu_s if cpu else self.wall_s
        checks_s = sum(spent for row, spent in spent_s.items() if row not in {SAMPLES, OTHER})
        return checks_s / max(sum(spent_s.values()), 1e-9)


def main() -> int:
    """Run the trials and print the tables; 1 if a trial failed."""
    from opgauge.harness.case.file import load_cases
    from opgauge.harness.run.runner import plan

    parser = argparse.ArgumentParser(prog="python -m tools.audit_cost", description=__doc__)
    parser.add_argument("--tag", default="seed")
    parser.add_argument("--op", action="append", help="repeatable")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=1, help="take every n-th case only")
    parser.add_argument("--budget", type=float, default=Settings.budget_s)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--cpu-clock", action="store_true")
    given = parser.parse_args()
    if given.cpu_clock:
        os.environ[CLOCK] = "1"
    cases = [one for one in load_cases([ROOT / "cases"]) if given.tag in one.tags and one.op in (given.op or [one.op])]
    trials = plan(cases[:: given.every], implementations=("optimized", "baseline"), devices=(given.device,))
    trees = [one for one in (given.against, ROOT) if one]
    found = measure(trials, trees, Limits(budget_s=given.budget, turns=TURNS))
    for tree, costs in found.items():
        sys.stdout.write("\n".join([f"{tree}: {costs.trials} trials", *table(costs), *costs.failed]) + "\n\n")
    return 1 if any(costs.failed for costs in found.values()) else 0


def measure(trials: Sequence[Trial], trees: Sequence[Path], limits: Limits) -> dict[Path, Costs]:
    """Costs by checkout, whose harnesses run each case in alternating order."""
    found = {tree: Costs() for tree in trees}
    by_case: dict[str, list[Trial]] = {}
    for trial in trials:
        by_case.setdefault(trial.case.id, []).append(trial)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        executors = {
            tree: stack.enter_context(
                LocalExecutor(
                    limits=limits,
                    preload=("numba", "tools.audit_cost"),
                    environment={
                        "PYTHONPATH": os.pathsep.join([str(tree / "tools" / "package"), str(tree)]),
                        TARGET: str(folder / str(number)),
                    },
                )
            )
            for number, tree in enumerate(trees)
        }
        for number, case_trials in enumerate(by_case.values()):
            for tree in trees[:: -1 if number % 2 else 1]:
                costs = Costs()
                costs.add(executors[tree].run(case_trials))
                costs.read(folder / str(trees.index(tree)))
                found[tree] += costs
                top = ", ".join(f"{row} {spent:.3f}" for row, spent in costs.cpu_s.most_common())
                sys.stderr.write(f"{case_trials[0].case.op} {case_trials[0].case.name}, {tree.name}: CPU s: {top}\n")
    return found


def table(costs: Costs) -> list[str]:
    """Lines of the table, largest rows first."""
    wall_s = {**costs.wall_s, ALL: sum(costs.wall_s.values())}
    cpu_s = {**costs.cpu_s, ALL: sum(costs.cpu_s.values())}
    lines = [f"| {'part':<36} | wall s | CPU s | share of wall | share of CPU |", "|---|---:|---:|---:|---:|"]
    for row in sorted(wall_s, key=lambda row: -wall_s[row]):
        shares = f"{wall_s[row] / wall_s[ALL]:6.2%} | {cpu_s[row] / cpu_s[ALL]:6.2%}"
        lines.append(f"| {row:<36} | {wall_s[row]:6.2f} | {cpu_s[row]:5.2f} | {shares} |")
    return [*lines, f"checks: {costs.share():.1%} of the wall time, {costs.share(cpu=True):.1%} of the CPU time"]


def install(target: Path) -> None:
    """Time the functions of this process's harness, and append the seconds of each trial to `target`."""
    wall_s: dict[str, float] = defaultdict(float)
    cpu_s: dict[str, float] = defaultdict(float)
    open_: list[str] = []

    def timed(row: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            if open_ and open_[-1] != OTHER:
                return function(*args, **named)
            open_.append(row)
            begun, busy = time.perf_counter(), time.process_time()
            try:
                return function(*args, **named)
            finally:
                took, used = time.perf_counter() - begun, time.process_time() - busy
                open_.pop()
                wall_s[row] += took
                cpu_s[row] += used
                if open_:  # not the trial's own
                    wall_s[OTHER] -= took
                    cpu_s[OTHER] -= used
                else:
                    with target.open("a", encoding="ascii") as file:
                        file.write(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}) + "\n")
                    wall_s.clear()
                    cpu_s.clear()

        return run

    if os.environ.get(CLOCK):
        time.perf_counter, time.perf_counter_ns = time.process_time, time.process_time_ns
    for name, row in TIMED.items():
        module, _, path = name.partition(":")
        *outer, last = path.split(".")
        holder = import_module(WORKER + module)
        for part in outer:
            holder = getattr(holder, part)
        setattr(holder, last, timed(row, getattr(holder, last)))


def _target() -> Path | None:
    named = os.environ.get(TARGET)
    is_worker = getattr(sys.modules["__main__"].__spec__, "name", "") == "opgauge.harness.worker.serve"
    return Path(named) if named and is_worker else None


if __name__ == "__main__":
    sys.exit(main())
elif (_file := _target()) is not None:
    install(_file)
