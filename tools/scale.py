"""Simulation of large runs on clusters, as in docs/scale.md: `python -m tools.scale EXPORT`.

Durations are drawn from the cases of an export: per case the sum of its trials' times on the device. References are
timed here, for some of those cases, and extrapolated to the others by bytes.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import Any

from opgauge.harness.case.casejson import case_from_json
from opgauge.harness.cluster.simulate import Load, Shape, Simulated, simulate
from opgauge.harness.json_text import read
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.verify import expect

SHAPES = (
    Shape(1, 1),
    Shape(1, 1, reference_slots=16),
    Shape(1, 8, reference_slots=32),
    Shape(8, 8),
    Shape(8, 8, reference_slots=32),
    Shape(8, 8, reference_slots=128),
)
"""Simulated clusters."""
TRIALS = 100_000
"""Trials of the simulated run."""
TIMED, LARGEST = 40, 32 << 20
"""Cases whose references are timed, and their largest bytes."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path, help="of `opgauge export`, with the durations of phases")
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    export = read(options.export.read_bytes())
    per_case, loads = loads_of(export, seconds_per_byte(export), options.trials)
    print(f"{len(loads)} cases, {options.trials} trials, {per_case:.2f} trials a case\n")  # noqa: T201
    print("| hosts × GPUs | CPU slots a host | makespan | ÷ bound | GPUs busy | messages/s | rows/s |")  # noqa: T201
    print("|---|--:|--:|--:|--:|--:|--:|")  # noqa: T201
    for shape in SHAPES:
        print(row(shape, simulate(loads, shape), options.trials))  # noqa: T201


def row(shape: Shape, found: Simulated, trials: int) -> str:
    """One line of the table; two rows of the database are written per trial."""
    hours = f"{found.makespan_s / 3600:.2f} h"
    ratio = found.makespan_s / found.bound_s
    rows = 2 * trials / found.makespan_s
    return (
        f"| {shape.hosts} × {shape.devices} | {shape.reference_slots} | {hours} | {ratio:.3f} "
        f"| {100 * found.busy:.0f} % | {found.messages_per_s:.0f} | {rows:.0f} |"
    )


def loads_of(export: dict[str, Any], per_byte_s: float, trials: int) -> tuple[float, list[Load]]:
    """Trials per case, and as many cases as make `trials`, drawn with replacement from an export."""
    cases: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in export["results"]:
        if "phases_s" in result["extra"]:
            cases[result["trial"]["case"]["id"]].append(result)
    known = [Load(sum(map(_device_s, found)), per_byte_s * found[0]["bytes"]) for found in cases.values()]
    per_case = sum(map(len, cases.values())) / len(cases)
    chosen = random.Random(0)  # noqa: S311  a sample
    return per_case, chosen.choices(known, k=round(trials / per_case))


def seconds_per_byte(export: dict[str, Any]) -> float:
    """Time of inputs and references of some cases on one CPU, over the bytes of those cases."""
    cases = {result["trial"]["case"]["id"]: result for result in export["results"] if 0 < result["bytes"] <= LARGEST}
    chosen = random.Random(1).sample(sorted(cases), min(TIMED, len(cases)))  # noqa: S311  a sample
    begun = perf_counter()
    for one in chosen:
        case = case_from_json(cases[one]["trial"]["case"])
        expect(case, make_inputs(case), threads=1)
    return (perf_counter() - begun) / float(sum(cases[one]["bytes"] for one in chosen))


def _device_s(result: dict[str, Any]) -> float:
    return float(sum(time for phase, time in result["extra"]["phases_s"].items() if phase != "reference"))


if __name__ == "__main__":
    main()
