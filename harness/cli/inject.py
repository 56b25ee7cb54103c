"""`opgauge inject`: planted slowdowns, which measure how many the gate detects."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from opgauge.harness.cli import aa
from opgauge.harness.cli import gate_options as gating
from opgauge.harness.cli.options import AsJson, Database, Devices, Dtypes, Ops, Timeout

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
    case: gating.Cases = None,
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
    """Plant a slowdown in a copy of all kernels, run the gate against it, and count the detected ones.

    Each case is judged by itself, as if it were the only slow one of a run, and by its times alone, since counting
    launches would detect the planted one. Prints the detected share with 95 % bounds and the seconds of sampling
    that it took, and stores them.

    Example: opgauge inject --slowdown 0.05 --op sign
    """
    from opgauge.harness.run.environment import commit
    from opgauge.harness.run.tree import Tree, find_tree
    from opgauge.harness.settings import load_settings
    from opgauge.harness.trust.self_test import by_time_alone, caught
    from opgauge.harness.trust.table import cases_table, caught_table, footer

    started = monotonic()
    path = find_tree(tree or Path.cwd())
    own = Tree(path, commit(path), "this tree")
    conditions = by_time_alone(
        aa.load_conditions(path, policy, aa.schedule(pairs, most_pairs), block_s, threads, method), among
    )
    selection = gating.selected(
        paths=paths, cases=case, ops=op, tags=tag, dtypes=dtype, implementations=implementation, devices=device
    )
    done: list[GateRun] = []
    try:
        plant(own, selection, conditions, load_settings(), timeout, slowdown, runs, done)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
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
    """Compare a tree with a copy of it in which every selected kernel is slower."""
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.gate.selection import plan
    from opgauge.harness.run.tree import Tree
    from opgauge.harness.trust.self_test import out_of_reach, repeat, slowed_copy
    from opgauge.ops import Device

    with gating.worker_pool({BASE: own, HEAD: own}, settings, timeout) as pool:
        laid = plan(pool, selection, conditions.policy)
    subjects = [job.subject for job in laid.jobs if job.is_paired]
    beyond = out_of_reach(laid, conditions.policy, slowdown)
    if beyond:
        said = f"cannot be detected in {len(beyond)} of {len(subjects)} cases: their thresholds are not below"
        typer.echo(f"{100 * slowdown:g} % {said} (see --policy)", err=True)
    kernels = [(one.op, one.implementation, Device.parse(one.device).backend) for one in subjects]
    with slowed_copy(own.path, kernels, slowdown) as copy:
        trees = {BASE: own, HEAD: Tree(copy, own.commit, f"{100 * slowdown:g} % slower")}
        with gating.worker_pool(trees, settings, timeout) as pool:
            for run in repeat(pool, selection, conditions, runs):
                done.append(run)
                typer.echo(f"{len(done)}/{runs} {gating.line(run)}", err=True)
