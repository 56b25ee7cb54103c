"""`opgauge tune`: launch parameters for the current device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.options import Gpus, Paths, Scheduler, Timeout, load
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from distributed import Client
    from rich.console import Console
    from rich.table import Table

    from opgauge.harness.case.case import Case
    from opgauge.harness.result.result import Environment
    from opgauge.harness.settings import Settings
    from opgauge.harness.tune.rounds import TuningBench
    from opgauge.harness.tune.tuner import TuningFinding
    from opgauge.ops._core.tuning import Parameter

INTERRUPTED = 130
"""Exit code when interrupted."""


def tune(
    paths: Paths = None,
    op: Annotated[list[str] | None, typer.Option("--op", help="Only parameters of this op; repeatable.")] = None,
    parameter: Annotated[list[str] | None, typer.Option("--parameter", help="Only this one; repeatable.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N. Default: cuda, else cpu.")
    ] = None,
    budget: Annotated[float, typer.Option("--budget", help="Seconds for each parameter.", min=0.1)] = 60.0,
    timeout: Timeout = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; default: the device's own, in ops/tuning.")
    ] = None,
    gpus: Gpus = None,
    cluster: Scheduler = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List parameters and cases; measure nothing.")] = False,
) -> None:
    """Find launch parameters that are faster on the device than the defaults, and write them to its file.

    Each candidate is interleaved with the default, in fresh processes, on the cases tagged seed, sites or full
    whose kernels read it. It is chosen if the geometric mean of its times is at least 1 % below the default's, with
    the whole 99 % interval; a wrong result excludes it. Entries of parameters that are not measured stay in the
    file. OPGAUGE_TUNING names a file that overrides those in ops/tuning.

    Example: opgauge tune --op p_norm --device cuda --budget 120
    """
    from opgauge.harness.cli.cluster import opened_cluster, spread_device
    from opgauge.harness.errors import NothingError
    from opgauge.harness.settings import load_settings
    from opgauge.ops import Device, available

    settings = load_settings()
    with opened_cluster(gpus, cluster) as client:
        at = Device.parse(spread_device(client, device))
        chosen = select(at.backend, op, parameter)
        if client is None and at.backend not in available():
            msg = f"there is no {at} here to tune for"
            raise NothingError(msg)
        wanted = _with_cases(chosen, load(paths), settings)
        if dry_run:
            _console().print(plan_table(wanted))
            return
        with _opened_bench(client, str(at), settings, timeout or settings.timeout_s) as bench:
            _run(str(at), wanted, settings, budget, bench, output)


@dataclass(frozen=True)
class _Bench:
    """Devices that measure rounds with their model and their environment."""

    rounds: TuningBench
    model: str
    environment: Environment


@contextmanager
def _opened_bench(client: Client | None, device: str, settings: Settings, timeout_s: float) -> Iterator[_Bench]:
    """The members of a cluster, or processes of this machine."""
    from opgauge.harness.cli.gate_options import tell
    from opgauge.harness.cluster.tuning import ClusterTuningBench, ExecutorOptions, name_there
    from opgauge.harness.run.environment import capture
    from opgauge.harness.tune.rounds import LocalTuningBench
    from opgauge.harness.tune.tuner import LIMITS

    options = ExecutorOptions(LIMITS, timeout_s, settings.threads, settings.memory_bytes)
    if client is None:
        model, environment = name_there(options, device), capture([device], threads=settings.threads)
        yield _Bench(LocalTuningBench(options.start), model, environment)
        return
    bench = ClusterTuningBench(client, device, options, tell)
    yield _Bench(bench, bench.model(device), bench.environment)


def select(backend: str, ops: Sequence[str] | None, names: Sequence[str] | None) -> list[Parameter]:
    """The requested parameters. Raises OpNotFoundError, TuningError, and NothingError if none is left."""
    from opgauge.harness.errors import NothingError
    from opgauge.ops import find_op
    from opgauge.ops._core.tuning import find, parameters

    for name in ops or ():
        find_op(name)
    asked = [find(name) for name in names or ()]
    found = [
        item for item in parameters(backend) if (not asked or item in asked) and (not ops or set(ops) & set(item.ops))
    ]
    if not found:
        there = ", ".join(item.name for item in parameters(backend))
        msg = f"no such parameter on {backend}; " + (f"there are {there}" if there else "these ops declare none")
        raise NothingError(msg)
    return found


def _with_cases(
    chosen: Sequence[Parameter], cases: Sequence[Case], settings: Settings
) -> list[tuple[Parameter, list[Case]]]:
    from opgauge.harness.errors import NothingError
    from opgauge.harness.run.environment import free_memory_bytes
    from opgauge.harness.tune.tuner import TAGS, cases_of

    memory_bytes = settings.memory_bytes or free_memory_bytes()
    found = [(item, cases_of(item, cases, memory_bytes)) for item in chosen]
    if not any(own for _, own in found):
        ops = ", ".join(sorted({op for item in chosen for op in item.ops}))
        msg = f"no case of {ops} is tagged {', '.join(TAGS)} and fits into memory"
        raise NothingError(msg)
    return found


def _run(
    device: str,
    wanted: Sequence[tuple[Parameter, list[Case]]],
    settings: Settings,
    budget_s: float,
    bench: _Bench,
    output: Path | None,
) -> None:
    """Tune, print, write; parameters finished before an interrupt are written too."""
    from datetime import UTC, datetime

    from opgauge.harness.cli.gate_options import tell
    from opgauge.harness.run.environment import commit
    from opgauge.harness.tune.file import write
    from opgauge.harness.tune.tuner import Tuner
    from opgauge.ops._core.tuning import shipped

    tuner = Tuner(bench.rounds, device, budget_s=budget_s, tell=tell)
    findings: list[TuningFinding] = []
    interrupted = False
    try:
        for item, cases in wanted:
            findings.append(tuner.tune(item, cases))
    except KeyboardInterrupt:
        interrupted = True
    tell("")
    console = _console()
    console.print(table(findings))
    for line in remarks(findings):
        typer.echo(line, err=True)
    model, environment = bench.model, bench.environment
    path = output or shipped(model)
    today = datetime.now(UTC).date()
    write(path, model, device, findings, environment, commit(but=path) or settings.commit, today)
    typer.echo(f"{sum(one.best is not None for one in findings)} of {len(findings)} changed for {model} in {path}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def plan_table(wanted: Sequence[tuple[Parameter, list[Case]]]) -> Table:
    """Table of the parameters and cases to measure."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("parameter", "default", "candidates", "cases", "why"):
        made.add_column(name, overflow="fold")
    for item, cases in wanted:
        candidates = " ".join(map(str, item.candidates))
        made.add_row(item.name, str(item.default), candidates, str(len(cases)), item.why)
    return made


def table(findings: Sequence[TuningFinding]) -> Table:
    """Table of the outcome: gain of the fastest candidate with its interval, chosen or not."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("parameter", overflow="fold")
    for name in ("default", "chosen", "fastest", "gain", "99 % interval", "cases", "rounds"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("worst case", overflow="fold")
    for one in findings:
        seen = one.best or one.nearest
        cells = ["–", "–", "–", ""]
        if seen is not None and seen.ratio is not None and seen.interval is not None and seen.worst is not None:
            interval = f"{_gain(seen.interval[1])} … {_gain(seen.interval[0])}"
            worst = escape(f"{seen.worst[0]} {_gain(seen.worst[1])}")
            cells = [str(seen.value), _gain(seen.ratio), interval, worst]
        counts = (str(len(one.cases)), str(one.rounds))
        kept = "" if one.best else " (kept)"
        made.add_row(
            one.parameter.name, str(one.parameter.default), f"{one.chosen}{kept}", *cells[:3], *counts, cells[3]
        )
    return made


def remarks(findings: Sequence[TuningFinding]) -> list[str]:
    """Excluded candidates and excluded cases, a line each."""
    lines = []
    for one in findings:
        lines += [f"{one.parameter.name} {tried.value}: {tried.reason}" for tried in one.tried if tried.reason]
        lines += [f"{one.parameter.name}: excluded {note}" for note in one.notes]
        if one.late:
            lines.append(f"{one.parameter.name}: no time for {counted(one.late, 'more case')}; --budget gives more")
        if not one.cases:
            lines.append(f"{one.parameter.name}: no measured case reads it")
    return lines


def _gain(ratio: float) -> str:
    return f"{100 * (1 - ratio):+.1f} %"


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)
