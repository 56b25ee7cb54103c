"""`opgauge agree`: our cold times compared with other clocks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.options import (
    AsJson,
    Cases,
    Database,
    Dtypes,
    Names,
    Ops,
    Paths,
    SampleBudget,
    Tags,
    database_url,
    load,
    select,
)

if TYPE_CHECKING:
    from opgauge.harness.measure import Limits
    from opgauge.harness.result.result import Profile, Trial
    from opgauge.harness.trust.agreement import Agreement
    from opgauge.harness.trust.yardstick import Pace

CHUNK = 32
"""Trials per process of cuda-bench."""


def agree(
    paths: Paths = None,
    op: Ops = None,
    tag: Tags = None,
    dtype: Dtypes = None,
    name: Names = None,
    case: Cases = None,
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", "-i", help="Repeatable; default: optimized.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cuda or cuda:N; the CPU has no second clock.")] = "cuda",
    db: Database = None,
    budget: SampleBudget = None,
    as_json: AsJson = False,
) -> None:
    """Time cases by this harness and by cuda-bench, side by side, and sum their kernels by CUPTI; store the comparison.

    Our time should be within 2 % or 0.5 µs of cuda-bench's, and, for single kernels of 10 µs or more, within 3 % of
    CUPTI's. A clock that is not installed is named, and omitted.

    Example: opgauge agree --tag seed --device cuda
    """
    from opgauge.harness.errors import NothingError
    from opgauge.harness.measure import Limits
    from opgauge.harness.run.runner import plan
    from opgauge.harness.settings import load_settings
    from opgauge.ops import available

    if device.partition(":")[0] not in available() or device == "cpu":
        msg = f"no second clock for {device}: cuda-bench and CUPTI time CUDA devices, and this machine has none"
        raise NothingError(msg if device != "cpu" else "the CPU has no second clock: cuda-bench and CUPTI time GPUs")
    settings = load_settings()
    cases = select(load(paths), ops=op, tags=tag, dtypes=dtype, names=name, patterns=case)
    trials = plan(cases, implementations=implementation or ["optimized"], devices=[device])
    if not trials:
        msg = f"no kernel of {', '.join(implementation or ['optimized'])} on {device}"
        raise NothingError(msg)
    limits = Limits(budget_s=budget or settings.budget_s)
    found = list(_measure(trials, limits, settings.timeout_s))
    _report(found, trials[0].device, database_url(db), as_json=as_json)


def _measure(trials: Sequence[Trial], limits: Limits, timeout_s: float) -> Iterator[Agreement]:
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.trust import yardstick

    if yardstick.bench_version() is None:
        typer.echo(yardstick.MISSING, err=True)
    paces: list[Pace] = []
    for start in range(0, len(trials), CHUNK):
        paces += yardstick.measure(trials[start : start + CHUNK], limits)
    with LocalExecutor(timeout_s=timeout_s) as executor:
        profiles = list(executor.profile(trials))
    for reason in {profile.reason for profile in profiles if not profile.kernels}:
        typer.echo(f"no kernel list: {reason}", err=True)
    for trial, pace, profile in zip(trials, paces, profiles, strict=True):
        yield _agreement(trial, pace, profile)


def _agreement(trial: Trial, pace: Pace, profile: Profile) -> Agreement:
    from opgauge.harness.trust.agreement import Agreement

    case = trial.case
    known = pace.launch_ns is not None and profile.empty_ns is not None
    overhead_ns = (pace.launch_ns or 0.0) - (profile.empty_ns or 0.0) if known else None
    return Agreement(
        case.op,
        case.name,
        case.id,
        case.dtype,
        trial.implementation,
        pace.ours_ns,
        pace.bench_ns,
        profile.time_ns,
        profile.launches if profile.kernels else None,
        pace.reason or profile.reason,
        overhead_ns,
    )


def _report(found: Sequence[Agreement], device: str, url: str, *, as_json: bool) -> None:
    """Store and print; without any timed trial the command fails."""
    from datetime import UTC, datetime

    from opgauge.harness.errors import NothingError
    from opgauge.harness.run.environment import capture
    from opgauge.harness.settings import load_settings
    from opgauge.harness.store import Store
    from opgauge.harness.store.self_tests import SelfTest, add_self_test
    from opgauge.harness.trust.agreement import as_data, sentences
    from opgauge.harness.trust.yardstick import bench_version

    environment = capture([device])
    data = as_data(found, **environment.hard_of(device), cuda_bench=bench_version())
    commit = environment.commit or load_settings().commit
    with Store.open(url) as store:
        add_self_test(store.engine, SelfTest("agree", datetime.now(UTC), commit, device, data))
    if as_json:
        typer.echo(json.dumps(data, indent=1, allow_nan=False))
    else:
        _show(found)
        for line in sentences(data):
            typer.echo(line)
    if not data["bench_compared"] and not data["cupti_compared"]:
        msg = "nothing was compared: see the reasons above"
        raise NothingError(msg)


def _show(found: Sequence[Agreement]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from opgauge.harness.result.time_text import time_text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("op · case", overflow="fold")
    for column in ("ours", "cuda-bench", "±", "kernels", "launches", "±", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        outside = [
            name
            for name, agrees in (("bench", one.agrees_with_bench), ("CUPTI", one.agrees_with_cupti))
            if agrees is False
        ]
        table.add_row(
            escape(f"{one.op} · {one.case} · {one.implementation}"),
            time_text(one.ours_ns),
            time_text(one.bench_ns),
            _percent(one.over_bench),
            time_text(one.kernels_ns),
            "–" if one.launches is None else str(one.launches),
            _percent(one.over_kernels),
            f"outside {' '.join(outside)}" if outside else "",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"
