"""`opgauge aa`: A/A test, which measures how often the gate raises false alarms."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opgauge.harness.cli import gate_options as gating
from opgauge.harness.cli.cluster import opened_cluster
from opgauge.harness.cli.options import (
    AsJson,
    Cases,
    Database,
    Devices,
    Dtypes,
    Gpus,
    Ops,
    Scheduler,
    Timeout,
    database_url,
)

if TYPE_CHECKING:
    from opgauge.harness.gate.gate import Schedule
    from opgauge.harness.gate.run import Conditions, GateRun
    from opgauge.harness.result.result import Environment


def aa(
    paths: gating.Paths = None,
    runs: Annotated[int, typer.Option("--runs", help="Gate runs.", min=1)] = 20,
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
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write all process medians, by case and pair.")
    ] = None,
    as_json: AsJson = False,
    gpus: Gpus = None,
    cluster: Scheduler = None,
    db: Database = None,
) -> None:
    """Gate a tree against itself repeatedly: every alarm is a false positive.

    Prints the shares of decisions called slower or faster, of failed runs, and of undecided decisions, with 95 %
    bounds, and stores them. Ctrl-C ends it with the results so far.

    Example: opgauge aa --runs 20 --tag smoke --op sign
    """
    from opgauge.harness.cli.building import build
    from opgauge.harness.gate.gate import Schedule
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.run.environment import commit
    from opgauge.harness.run.tree import Tree, find_tree
    from opgauge.harness.settings import load_settings
    from opgauge.harness.trust.self_test import false_alarms, repeat
    from opgauge.harness.trust.table import alarms_table, footer

    started = monotonic()
    path = find_tree(tree or Path.cwd())
    build(path)
    same = Tree(path, commit(path), "this tree")
    conditions = load_conditions(path, policy, Schedule.of(pairs, most_pairs), block_s, threads, method)
    selection = gating.selected(
        paths=paths, cases=case, ops=op, tags=tag, dtypes=dtype, implementations=implementation, devices=device
    )
    gating.refuse_unwritable(record)
    done: list[GateRun] = []
    with opened_cluster(gpus, cluster) as client, ExitStack() as stack:
        if client is not None:
            selection = gating.on_one_device(client, selection)
        trees = {BASE: same, HEAD: same}
        opened = gating.worker_pool(trees, load_settings(), timeout, client, selection.devices)
        pool = stack.enter_context(opened)
        try:
            for run in repeat(pool, selection, conditions, runs):
                done.append(run)
                typer.echo(f"{len(done)}/{runs} {gating.line(run)}", err=True)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
        here = getattr(pool, "environment", None)
    tell_broken(done)
    data = false_alarms(done, monotonic() - started)
    facts = store(db, "aa", same.commit, done, data, here)
    if record is not None:
        write_recording(record, done, path, here)
    if as_json:
        typer.echo(json.dumps(data, indent=1))
        return
    typer.echo("\n".join((*alarms_table(data), "", footer(data, facts, same.commit))))


def tell_broken(runs: list[GateRun]) -> None:
    """Print the kernels that are broken in every run, which the figures leave out."""
    from opgauge.harness.trust.self_test import always_broken

    for one in always_broken(runs).values():
        typer.echo(f"left out: {one}", err=True)


def write_recording(file: Path, runs: list[GateRun], tree: Path, environment: Environment | None = None) -> None:
    """Write process medians, a line per case. environment: where they were measured; None: on this machine."""
    from opgauge.harness.run.environment import capture
    from opgauge.harness.settings import load_settings
    from opgauge.harness.trust.recording import as_recording

    here = environment or capture(runs[0].devices, threads=load_settings().threads, tree=tree)
    found = as_recording(runs, here, shlex.join(["opgauge", *sys.argv[1:]]))
    cases = ",\n".join(json.dumps(one, allow_nan=False, ensure_ascii=False) for one in found.pop("cases"))
    head = json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False).removesuffix("\n}")
    file.write_text(f'{head},\n "cases": [\n{cases}\n]}}\n', encoding="utf-8")


def load_conditions(
    tree: Path, policy: Path | None, planned: Schedule, block_s: float | None, threads: int, method: str | None
) -> Conditions:
    """The tree's policy, without waivers, which do not apply here."""
    from dataclasses import replace

    found = gating.load_rules(tree, policy)
    return replace(found, waivers=(), profile=False, schedule=planned, block_s=block_s, threads=threads, method=method)


def store(
    db: str | None,
    kind: str,
    commit: str,
    runs: list[GateRun],
    data: dict[str, Any],
    environment: Environment | None = None,
) -> str:
    """Store the findings of a self-test and return a description of the machine.

    environment: where it ran; None: on this machine. Raises NothingError without findings.
    """
    from datetime import UTC, datetime

    from opgauge.harness.errors import NothingError
    from opgauge.harness.gate.stored import machine
    from opgauge.harness.run.environment import capture
    from opgauge.harness.settings import load_settings
    from opgauge.harness.store import Store
    from opgauge.harness.store.self_tests import SelfTest, add_self_test

    if not runs or not data["decisions"]:
        msg = f"nothing was measured{': no kernel is right and supported here' if runs else ''}"
        raise NothingError(msg)
    machines = {}
    with Store.open(database_url(db)) as opened:
        for device in runs[0].devices:
            machines[device] = machine(environment or capture([device], threads=load_settings().threads), device)
            facts = {**data, "machine": machines[device]}
            add_self_test(opened.engine, SelfTest(kind, datetime.now(UTC), commit, device, facts))
    return "; ".join(f"{device}: {words}" for device, words in machines.items())
