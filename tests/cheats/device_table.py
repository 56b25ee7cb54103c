"""A table of the cheats on a GPU: what became of each, and of the honest kernel after it in the same process.

`python -m tests.cheats.device_table --seconds 200 --only "graph|stream"`
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from statistics import median
from time import monotonic

from opgauge.harness.errors import WorkerError
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Result, Status
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.worker.protocol import SUCCESSION
from tests.cheats.catalogue import Cheat, trial
from tests.cheats.test_cheats import MODULES, assert_flagged, of_device

PROCESSES = 4
"""Executors that take turns, so that a replaced process starts while others work."""
LATER = ("torch", "tensor", "tf32", "cudnn", "context", "resets", "memory")
"""Parts of the names of cheats that come last: they import torch, lose the device, or use up what all share."""
TIMEOUT_S = 20.0


def rank(cheat: Cheat) -> int:
    """Order of the table."""
    return max((number for number, part in enumerate(LATER, 1) if part in cheat.name), default=0)


def ratio(one: float | None, other: float | None) -> str:
    """A quotient for the table; a dash without one."""
    return f"{one / other:.2f}" if one is not None and other else "-"


def verdict(cheat: Cheat, found: Result) -> str:
    """Whether the outcome is the expected one."""
    try:
        assert_flagged(cheat, found)
    except AssertionError:
        return "HONEST, FLAGGED" if cheat.harmless else "PASSED"
    return "as expected"


def line(cheat: Cheat, found: Result, after: Result, seconds: float) -> str:
    """A row: cold and hot times are divided by those of the honest kernel."""
    one, honest = found.measurement, after.measurement
    cold = ratio(one.median_ns if one else None, honest.median_ns if honest else None)
    hot = ratio(one.hot_ns if one else None, honest.hot_ns if honest else None)
    gaps = "gaps" if one is not None and one.timer.endswith("gaps") else ""
    next_one = "next ok" if after.status is Status.OK else f"NEXT {after.status}: {after.reason[:80]}"
    left = " unfit" if found.extra.get("unfit") else ""
    facts = f"{found.status}{left} | cold {cold} hot {hot} {gaps} | {next_one} | {seconds:.1f} s"
    return f"{verdict(cheat, found):15} | {cheat.name} ({cheat.case}) | {facts} | {found.reason[:150]}"


def main(arguments: Sequence[str]) -> int:
    """Print a row for each cheat until the time is up."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=220.0, help="no cheat begins later than this")
    parser.add_argument("--only", default="", help="regular expression that names contain")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of sampling")
    chosen = parser.parse_args(arguments)
    cheats = sorted((one for one in of_device("cuda") if re.search(chosen.only, one.name)), key=rank)
    limits = Limits(budget_s=chosen.budget, min_samples=3, max_samples=20, warmup_s=0.005)
    begun, left = monotonic(), []
    shares: list[float] = []
    with ExitStack() as stack:
        made = (LocalExecutor(limits=limits, timeout_s=TIMEOUT_S, preload=MODULES) for _ in range(PROCESSES))
        executors = [stack.enter_context(one) for one in made]
        for cheat, executor in zip(cheats, cycle(executors), strict=False):
            started = monotonic()
            if started - begun > chosen.seconds:
                left.append(cheat.name)
                continue
            try:
                found, after = executor.run([trial(cheat), trial(cheat, "baseline")])
                text = line(cheat, found, after, monotonic() - started)
                phases = after.extra.get("phases_s", {})
                if after.status is Status.OK and phases:
                    shares.append(phases.get(SUCCESSION, 0.0) / sum(phases.values()))
            except WorkerError as error:
                text = f"HARNESS FAILED  | {cheat.name} | {str(error)[-300:]!r}"
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
    share = f"checks beside the samples take {median(shares):.1%} of honest trials" if shares else "no honest trial"
    took = f"{len(cheats) - len(left)} cheats in {monotonic() - begun:.0f} s"
    sys.stdout.write(f"{took}; {share} of {chosen.budget:g} s; not run: {left}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
