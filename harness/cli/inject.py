"""`opgauge inject`: whether the gate detects a planted slowdown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli import aa
from opgauge.harness.cli import gate_options as gating
from opgauge.harness.cli.options import AsJson, Cases, Database, Devices, Dtypes, Ops, Timeout
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from opgauge.harness.gate.run import Conditions, GateRun
    from opgauge.harness.gate.selection import Selection
    from opgauge.harness.run.tree import Tree
    from opgauge.harness.settings import Settings


def inject(
    paths: gating.Paths = None,
    slowdown: Annotated[float, typer.Option("--slowdown", help="Slowdown of a call, as a share of its time.")] = 0.05,
    runs: Annotated[int, typer.Option("--runs", help="Gate runs.", min=1)] = 1,
    among: Annotated[
        int, typer.Option("--among", help="Judge each case as the only slowed one of N cases in a run.", min=1)
    ] = 60,
    case: Cases = None,
    op: Ops = None,
    tag: gating.Tags = None,
    dtype: Dtypes = None,
    implementation: gating.Implementations = None,
    device: Devices = None,
    tree: gating.TreeOption = None,
    policy: gating.PolicyFile = None,
    pairs: gating.Pairs = None,
    most_pairs: gating.MostPairs = 10,
    block_s: gating.BlockS = None,
    threads: gating.Threads = 1,
    method: gating.Method = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    db: Database = None,
) -> None:
    """Slow down the selected kernels, gate them against the unchanged ones, and count the detected slowdowns.

    The base and the head are the same tree; the processes of the head add the slowdown to each call. Each case is
    judged as the only slow one of a run, and by its times alone: counting launches would find the planted one. Prints
    and stores the share detected with 95 % bounds, and the seconds of sampling.

    Example: opgauge inject --slowdown 0.05 --op sign
    """
    from opgauge.harness.cli.building import build
    from opgauge.harness.gate.gate import Schedule
    from opgauge.harness.run.environment import commit
    from opgauge.harness.run.tree import Tree, find_tree
    from opgauge.harness.settings import load_settings
    from opgauge.harness.trust.self_test import by_time_alone, caught
    from opgauge.harness.trust.table import cases_table, caught_table, footer

    started = monotonic()
    path = find_tree(tree or Path.cwd())
    build(path)
    own = Tree(path, commit(path), "this tree")
    conditions = by_time_alone(
        aa.load_conditions(path, policy, Schedule.of(pairs, most_pairs), block_s, threads, method), among
    )
    selection = gating.selected(
        paths=paths, cases=case, ops=op, tags=tag, dtypes=dtype, implementations=implementation, devices=device
    )
    done: list[GateRun] = []
    try:
        plant(own, selection, conditions, load_settings(), timeout, slowdown, runs, done)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
    aa.tell_broken(done)
    data = caught(done, slowdown, monotonic() - started)
    facts = aa.store(db, "inject", own.commit, done, data)
    if as_json:
        typer.echo(json.dumps(data, indent=1))
        return
    lines = (*cases_table(data), "", *caught_table(data), "", footer(data, facts, own.commit))
    typer.echo("\n".join(lines))


def plant(
    own: Tree,
    selection: Selection,
    conditions: Conditions,
    settings: Settings,
    timeout: float | None,
    slowdown: float,
    runs: int,
    done: list[GateRun],
) -> None:
    """Gate the tree against itself with every selected kernel slowed down in the processes of the head."""
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.gate.selection import plan
    from opgauge.harness.trust import planted
    from opgauge.harness.trust.self_test import out_of_reach, repeat
    from opgauge.ops import Device

    with gating.worker_pool({BASE: own, HEAD: own}, settings, timeout) as pool:
        laid = plan(pool, selection, conditions.policy)
    subjects = [job.subject for job in laid.jobs if job.is_paired]
    beyond = out_of_reach(laid, conditions.policy, slowdown)
    if beyond:
        where = f"{len(beyond)} of {counted(len(subjects), 'case')}"
        said = f"cannot be detected in {where}: their thresholds are not below (see --policy)"
        typer.echo(f"{100 * slowdown:g} % {said}", err=True)
    kernels = [(one.op, one.implementation, Device.parse(one.device).backend) for one in subjects]
    slowed = replace(
        own,
        label=f"{100 * slowdown:g} % slower",
        preload=(planted.__name__,),
        environment=planted.environment(dict.fromkeys(kernels, slowdown)),
    )
    with gating.worker_pool({BASE: own, HEAD: slowed}, settings, timeout) as pool:
        for run in repeat(pool, selection, conditions, runs):
            done.append(run)
            typer.echo(f"{len(done)}/{runs} {gating.line(run)}", err=True)
