"""`opgauge aa`: the same code against itself, to see how often the gate cries wolf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import gate as gating
from harness.cli.options import AsJson, Database, database_url

if TYPE_CHECKING:
    from harness.gaterun import Conditions, GateRun
    from harness.selection import Selection


def aa(
    paths: gating.Paths = None,
    runs: Annotated[int, typer.Option("--runs", help="Gate runs.", min=1)] = 20,
    case: gating.Cases = None,
    op: gating.Ops = None,
    tag: gating.Tags = None,
    dtype: gating.Dtypes = None,
    implementation: gating.Implementations = None,
    device: gating.Devices = None,
    tree: gating.TreeOption = None,
    policy: gating.PolicyFile = None,
    pairs: gating.Pairs = 4,
    most_pairs: gating.MostPairs = 10,
    block_s: gating.BlockS = None,
    timeout: gating.Timeout = None,
    as_json: AsJson = False,
    db: Database = None,
) -> None:
    """Run the gate on the same tree twice over, so many times: every alarm is a false one.

    Prints the shares of decisions called slower or faster, of runs that go red, and of decisions left
    undecided, with 95 % bounds, and stores them. Ctrl-C ends it with what there is.

    Example: opgauge aa --runs 20 --tag smoke --op sign
    """
    from harness.environment import commit
    from harness.pairing import BASE, HEAD
    from harness.selftest import false_alarms, repeat
    from harness.settings import load_settings
    from harness.share import Share
    from harness.tree import Tree, find_tree

    path = find_tree(tree or Path.cwd())
    same = Tree(path, commit(path), "this tree")
    conditions = load_conditions(path, policy, block_s, pairs, most_pairs)
    done: list[GateRun] = []
    with gating.workshop({BASE: same, HEAD: same}, load_settings(), timeout) as workshop:
        try:
            for run in repeat(workshop, select(paths, case, op, tag, dtype, implementation, device), conditions, runs):
                done.append(run)
                typer.echo(f"{len(done)}/{runs} {gating.line(run)}", err=True)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
    data = false_alarms(done)
    store(db, "aa", same.commit, done, data)
    if as_json:
        typer.echo(json.dumps(data, indent=1))
        return
    count = data["decisions"]
    typer.echo(f"slower or faster: {Share(data['slower'] + data['faster'], count)}")
    typer.echo(f"red runs:         {Share(round(data['red_run_share'] * len(done)), len(done))}")
    typer.echo(f"undecided:        {Share(data['undecided'], count)}")
    typer.echo(f"{data['seconds']:.0f} s, {100 * data['measuring_share']:.0f} % of it sampling")


def select(
    paths: list[Path] | None,
    case: list[str] | None,
    op: list[str] | None,
    tag: list[str] | None,
    dtype: list[str] | None,
    implementation: list[str] | None,
    device: list[str] | None,
) -> Selection:
    """What was asked for."""
    from harness.selection import Selection

    return Selection(
        paths=tuple(paths or ()),
        cases=tuple(case or ()),
        ops=tuple(op or ()),
        tags=tuple(tag or ()),
        dtypes=tuple(dtype or ()),
        implementations=tuple(implementation or ()),
        devices=tuple(device or ()),
    )


def load_conditions(tree: Path, policy: Path | None, block_s: float | None, pairs: int, most_pairs: int) -> Conditions:
    """The tree's policy, without waivers: they have no part in this."""
    from dataclasses import replace

    from harness.gate import Schedule

    found = gating.load_rules(tree, policy)
    schedule = Schedule(start=min(pairs, most_pairs), most=most_pairs)
    return replace(found, waivers=(), profile=False, schedule=schedule, block_s=block_s or found.block_s)


def store(db: str | None, kind: str, commit: str, runs: list[GateRun], data: dict[str, Any]) -> None:
    """Keep what a self-test found; nothing where nothing was run."""
    from datetime import UTC, datetime

    from harness.environment import capture
    from harness.errors import NothingError
    from harness.settings import load_settings
    from harness.store import Store
    from harness.store.queries import SelfTest, add_self_test
    from harness.stored import machine

    if not runs or not data["decisions"]:
        msg = "nothing was measured"
        raise NothingError(msg)
    with Store.open(database_url(db)) as opened:
        for device in runs[0].devices:
            facts = {**data, "machine": machine(capture([device], threads=load_settings().threads), device)}
            add_self_test(opened.engine, SelfTest(kind, datetime.now(UTC), commit, device, facts))
