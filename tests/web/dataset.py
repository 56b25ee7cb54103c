"""Stores to show: runs of several commits on two devices, with a step, a repair, a break, and hostile texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Check, Environment, KernelUse, Measurement, Profile, Result, Status, Trial
from opgauge.harness.result.submission import Submission
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.ops import find_op

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}<b>%{x}</b>"
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
RUNS = 22
STEP_AT, REPAIR_FROM, REPAIRED_AT = 12, 6, 15
CPU, GPU = "cpu", "cuda:0"
HARD = {
    "cpu.model": "AMD EPYC 9454",
    "cpu.threads": "16",
    "cuda:0.model": "NVIDIA H200",
    "cuda:0.mig": "off",
    "cuda:0.driver_major": "580",
}


@dataclass(frozen=True)
class Shape:
    """A case and how fast its implementations are, in nanoseconds."""

    case: Case
    times: Mapping[str, float]
    bytes: int
    flops: int


def _case(op: str, name: str, shapes: Mapping[str, tuple[int, ...]], dtype: str, **given: Any) -> Case:
    params = find_op(op).params(**given.pop("params", {}))
    return Case(op, name, shapes, dtype, params, **given)


def shapes() -> list[Shape]:
    """The cases of the dataset."""
    rows: dict[str, tuple[int, ...]] = {"x": (300, 250, 250)}
    found = []
    for dtype, size in (("float32", 4), ("float16", 2)):
        moved = 300 * 250 * 250 * size
        for porder in (2.0, math.inf):
            name = f"seed-1[{dtype},porder={porder:g}]"
            params = {"porder": porder, "axis": -1}
            case = _case("p_norm", name, rows, dtype, params=params, tags=("seed", "gate"), note="RFC table 1")
            base = moved / 1500
            times = {"baseline": base * 5, "warp_rows": base * 1.2, "optimized": base / 2.2, "torch": base / 1.4}
            found.append(Shape(case, {**times, "torch_compile": base / 1.9}, moved, moved // size * 2))
    for height in (64, 256):
        moved = height * 4096 * 4 * 3
        case = _case(
            "lerp",
            f"rows-{height}",
            dict.fromkeys("xy", (height, 4096)),
            "float32",
            params={"weight": 0.5},
            tags=("smoke",),
        )
        times = {"baseline": moved / 500, "optimized": moved / 2400, "torch": moved / 2600}
        found.append(Shape(case, times, moved, moved // 6))
    case = _case("flatten", HOSTILE, {"x": (64, 64, 4)}, "float32", tags=(HOSTILE,), note=HOSTILE)
    times = {"baseline": 9000.0, "optimized": 7000.0, "torch": 7600.0}
    found.append(Shape(case, times, 131072, 0))
    return found


def profile(name: str, time: float) -> Profile:
    """The kernels of one call."""
    if name == "optimized":
        uses: tuple[KernelUse, ...] = (KernelUse(f"p_norm_rows<float, {HOSTILE}>", 1, time * 0.97, 1.0),)
        return Profile(uses, time * 0.97, 5, "cupti 13")
    parts = ("abs_kernel", "pow_kernel<float, 4>", "reduce_kernel<512, 1, float>", "root_kernel")
    weights = (0.3, 0.35, 0.25, 0.08)
    uses = tuple(KernelUse(part, 1, time * share, share) for part, share in zip(parts, weights, strict=True))
    return Profile(uses, time * 0.98, 5, "cupti 13")


def _factor(shape: Shape, name: str, device: str, run: int) -> float:
    """The story: a step that stays, one that is repaired, both of optimized kernels on the GPU."""
    if name != "optimized" or device != GPU:
        return 1.0
    if shape.case.name == "seed-1[float32,porder=2]" and run >= STEP_AT:
        return 1.18
    if shape.case.name == "rows-256" and REPAIR_FROM <= run < REPAIRED_AT:
        return 1.3
    return 1.0


def results(run: int, noise: np.random.Generator, blocks: int = 1) -> Iterator[Result]:
    """The results of a run."""
    for shape in shapes():
        for device in (CPU, GPU):
            for name, time in shape.times.items():
                for block in range(blocks):
                    yield _result(shape, name, device, run, block, time, noise)


def _result(
    shape: Shape, name: str, device: str, run: int, block: int, time: float, noise: np.random.Generator
) -> Result:
    backend = device.partition(":")[0]
    trial = Trial(shape.case, name, backend, device)
    plain = Result(trial, Status.OK, bytes=shape.bytes, flops=shape.flops, block=block)
    if run == RUNS - 1 and shape.case.name == "rows-64" and device == GPU and name == "optimized":
        reason = f"y[3, 7] is 0.5, should be 0.25 {HOSTILE}"
        check = Check(ok=False, max_abs_error=0.25, max_rel_error=1.0, worst=math.inf, reason=reason)
        extra = {"phase": "first call", "log": HOSTILE}
        return replace(plain, status=Status.WRONG, reason=reason, check=check, extra=extra)
    if backend == "cpu" and name == "torch_compile":
        return replace(plain, status=Status.UNSUPPORTED, reason="no kernel torch_compile for the CPU here")
    scale = (1.0 if device == GPU else 14.0) * _factor(shape, name, device, run)
    middle = time * scale / 1000 * float(noise.normal(1, 0.004)) * 1000
    samples = tuple(middle * float(noise.normal(1, 0.01)) for _ in range(20))
    hot = middle * 0.8 if device == GPU else None
    peak = 4096 if device == GPU else None
    measurement = Measurement(samples, "events 1", 3, hot_ns=hot, peak_bytes=peak, threads=16)
    check = Check(ok=True, max_abs_error=1e-6, max_rel_error=1e-6, worst=0.21)
    seen = profile(name, middle) if device == GPU and name in {"baseline", "optimized"} else None
    return replace(plain, check=check, measurement=measurement, profile=seen)


def ceilings() -> list[Ceilings]:
    """What the devices reached."""
    return [
        Ceilings(CPU, 180.0, 150.0, {"float32": 900.0}, 90.0),
        Ceilings(GPU, 4100.0, 3900.0, {"float32": 52000.0, "float16": 700000.0}, 2100.0),
    ]


def fill(store: Store, runs: int = RUNS) -> list[str]:
    """Write the runs; gives their ids, oldest first. The last two are of one commit, with eight blocks each."""
    noise = np.random.default_rng(7)
    written = []
    for number in range(runs):
        commit = f"{min(number, runs - 2) + 1:02x}" * 20
        soft = {"commit": commit, "host": "gpu-7", "branch": "main", "python": "3.11", "note": HOSTILE}
        # a word wider than a phone
        soft |= {"commit_author": "Zoë", "commit_subject": f"Mend {'deep_' * 20}name"}
        when = START + timedelta(days=number)
        run = Submission(
            id=str(uuid4()),
            environment=Environment(HARD, soft),
            command=f"opgauge run --tag gate # {HOSTILE}",
            status="finished",
            started=when,
            finished=when + timedelta(minutes=4),
            ceilings=tuple(ceilings()),
            results=tuple(results(number, noise, 8 if number >= runs - 2 else 1)),
        )
        add_run(store.engine, run)  # a result at a time takes ten times as long
        written.append(run.id)
    return written


def broken(result: Result) -> Result:
    """The same trial, timed out."""
    return replace(result, status=Status.TIMEOUT, reason="too long", measurement=None, check=None)
