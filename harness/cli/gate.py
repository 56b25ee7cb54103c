"""`opgauge gate`: whether this tree is slower or broken, against another commit or stored results."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli import gate_options as gating
from opgauge.harness.cli.cluster import opened_cluster
from opgauge.harness.cli.explain import explain
from opgauge.harness.cli.options import (
    AsJson,
    Cases,
    Database,
    Devices,
    Dtypes,
    Gpus,
    Names,
    Ops,
    Scheduler,
    Timeout,
    command_line,
    database_url,
)

if TYPE_CHECKING:
    from distributed import Client

    from opgauge.harness.gate.gate import GateOutcome
    from opgauge.harness.gate.pool import WorkerPool
    from opgauge.harness.gate.run import Conditions, GateRun, Noise
    from opgauge.harness.gate.selection import Selection
    from opgauge.harness.gate.stored import Stored
    from opgauge.harness.settings import Settings

USAGE, BROKEN, NOTHING = 2, 3, 5
"""Exit codes: usage error; a broken head; nothing measured."""
STOP = 255
"""Exit code at which `git bisect run` ends."""
CANNOT_TELL = 125
"""Exit code for which `git bisect run` skips the commit."""


def gate(
    paths: gating.Paths = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REF", help="Commit to compare with; default: the fork point."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="RUN|BRANCH", help="Compare with stored results of the same machine."),
    ] = None,
    changed: Annotated[
        bool | None,
        typer.Option(
            "--changed/--all",
            help="Only ops that the change can reach, by imports and includes; the default without other filters.",
            show_default=False,
        ),
    ] = None,
    trust_hash: Annotated[
        bool, typer.Option("--trust-hash", help="Skip kernels whose compiled code did not change, and say so.")
    ] = False,
    case: Cases = None,
    op: Ops = None,
    tag: gating.Tags = None,
    dtype: Dtypes = None,
    name: Names = None,
    implementation: gating.Implementations = None,
    device: Devices = None,
    tree: gating.TreeOption = None,
    policy: gating.PolicyFile = None,
    waivers: gating.WaiverFile = None,
    pairs: gating.Pairs = None,
    most_pairs: gating.MostPairs = 10,
    block_s: gating.BlockS = None,
    threads: gating.Threads = 1,
    method: gating.Method = None,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts", help="Also count instructions on the CPU, with one thread (experimental, slow with valgrind)."
        ),
    ] = False,
    budget: gating.Budget = None,
    timeout: Timeout = None,
    dry_run: gating.GateDryRun = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a Markdown report.")
    ] = None,
    as_json: AsJson = False,
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Exit codes for git bisect run: 1 slower, 0 not, 125 cannot tell, 255 stop."),
    ] = False,
    bisect_broken: Annotated[
        bool, typer.Option("--bisect-broken", help="The same, but 1 is broken, and slower is not.")
    ] = False,
    store: Annotated[bool, typer.Option("--store", help="Store this tree's blocks as a run, for --against.")] = False,
    gpus: Gpus = None,
    cluster: Scheduler = None,
    db: Database = None,
) -> None:
    """Compare this tree's kernels with another's: slower, faster, the same, broken, or undecided.

    One harness measures both trees in pairs of processes. On the CPU their samples alternate. Ends with 0 passed,
    1 slower, 2 usage or case-file error, 3 broken, 4 undecided, 5 nothing measured. Report files are written in every
    case, with the reason where nothing was measured.

    Example: opgauge gate --base main --markdown gate.md
    """
    started = monotonic()
    if against is not None:
        _refuse_with_against(base, trust_hash=trust_hash)
    if cluster and (store or against is not None):
        msg = "--cluster compares two trees: --store and --against are about results of this machine"
        raise typer.BadParameter(msg)
    written = gating.refuse_unwritable(junit, markdown)
    filters = gating.selected(
        paths=paths,
        cases=case,
        ops=op,
        tags=tag,
        dtypes=dtype,
        names=name,
        implementations=implementation,
        devices=device,
        reports=written,
    )
    is_narrowed = any((paths, case, op, tag, dtype, name, implementation, against))
    selection = replace(filters, changed=not is_narrowed if changed is None else changed, trust_hash=trust_hash)
    with _never_a_verdict(bisect=bisect or bisect_broken):
        from opgauge.harness.cli.gate_reports import Reports, print_table, reported, write
        from opgauge.harness.gate.gate import Schedule
        from opgauge.harness.gate.run import gate as run_gate
        from opgauge.harness.run.tree import default_base, find_tree
        from opgauge.harness.settings import load_settings

        settings = load_settings()
        head = find_tree(tree or Path.cwd())
        reports = Reports(as_json=as_json, junit=junit, markdown=markdown)
        with reported(head, base or against or "", reports), opened_cluster(gpus, cluster) as client:
            if client is not None:
                selection = gating.on_one_device(client, selection)
            conditions = replace(
                gating.load_rules(head, policy, waivers),
                noise={} if cluster else load_noise(head, selection, settings, db),
                schedule=Schedule.of(pairs, most_pairs),
                block_s=block_s,
                threads=threads,
                counts=counts,
                method="blocks" if store else method,
                end=started + budget if budget else None,
            )
            if against is None:
                opened = commit_pool(head, base or default_base(head), settings, timeout, client, selection.devices)
            else:
                opened = stored_pool(head, against, selection, settings, timeout, database_url(db), client)
            with opened as (pool, stored):
                if dry_run:
                    describe(pool, selection, conditions, stored, as_json=as_json)
                    return
                run = run_gate(pool, selection, conditions, tell=gating.tell, stored=stored, begun=started)
        write(run, reports)
        print_table(run, reports)
        if store:
            keep_head(run, settings, database_url(db))
    if bisect or bisect_broken:
        raise typer.Exit(bisect_code(run.outcome, broken=bisect_broken))
    raise typer.Exit(int(run.outcome.code))


def _refuse_with_against(base: str | None, *, trust_hash: bool) -> None:
    """Raise BadParameter for options that stored results exclude."""
    if base is not None:
        msg = "name --base REF or --against RUN|BRANCH, not both"
        raise typer.BadParameter(msg)
    if trust_hash:
        msg = "--trust-hash needs --base: stored results come without their code"
        raise typer.BadParameter(msg)


@contextmanager
def _never_a_verdict(*, bisect: bool) -> Iterator[None]:
    """An error ends with 2, 3 or 5, in a bisection with "stop" or "skip": never with the code for slower."""
    from opgauge.harness.errors import HarnessError

    try:
        yield
    except HarnessError as error:
        typer.echo(f"opgauge: {error}", err=True)
        is_usage = error.exit_code == USAGE
        own = error.exit_code if error.exit_code in {USAGE, BROKEN} else NOTHING
        code = (STOP if is_usage else CANNOT_TELL) if bisect else own
        raise typer.Exit(code) from error
    except Exception as error:
        explained = explain(error)
        typer.echo(f"opgauge: {explained[0]}" if explained else traceback.format_exc(), err=True)
        raise typer.Exit(STOP if bisect else NOTHING) from error


Opened = tuple["WorkerPool", "Stored | None"]
"""Workers on both trees, and the stored results that stand for the base, if any do."""


@contextmanager
def commit_pool(
    head: Path,
    ref: str,
    settings: Settings,
    timeout: float | None,
    client: Client | None = None,
    devices: Sequence[str] = (),
) -> Iterator[Opened]:
    """Workers on `head` and on the commit `ref` of its repository, which is checked out meanwhile."""
    from opgauge.harness.cli.building import build, build_head
    from opgauge.harness.errors import ConfigurationError, TreeError
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.project import active
    from opgauge.harness.run.environment import commit
    from opgauge.harness.run.tree import Tree, checkout, own_extensions, resolve

    sha = resolve(head, ref)
    build_head(head)
    with checkout(head, sha) as beside:
        try:
            active.lend(beside)
            build(beside)
        except (ConfigurationError, TreeError) as error:
            fault = str(error).replace(f"{beside}{os.sep}", "").replace(str(beside), "its checkout")
            msg = f"the base ({sha[:12]}) cannot be used, --base names another: {fault}"
            raise TreeError(msg) from error
        base = Tree(beside, sha, sha[:12] if ref == sha else ref, environment=own_extensions(beside))
        trees = {BASE: base, HEAD: Tree(head, commit(head), "this tree")}
        with gating.worker_pool(trees, settings, timeout, client, devices) as pool:
            yield pool, None


@contextmanager
def stored_pool(
    head: Path,
    name: str,
    selection: Selection,
    settings: Settings,
    timeout: float | None,
    url: str,
    client: Client | None = None,
) -> Iterator[Opened]:
    """Workers on `head`, which is built first, with a stored run or the runs of a branch as the base."""
    from opgauge.harness.cli.building import build_head
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.gate.stored import load
    from opgauge.harness.run.environment import capture
    from opgauge.harness.run.tree import Tree
    from opgauge.harness.store import LATEST, Store

    build_head(head)
    devices = gating.chosen_devices(selection)
    here = capture(devices, threads=settings.threads, tree=head)
    with Store.open(url) as store:
        stored = load(store.engine, store.find_run(name).id if name == LATEST else name, head, here, devices)
    trees = {BASE: stored.tree, HEAD: Tree(head, here.commit, "this tree")}
    with gating.worker_pool(trees, settings, timeout, client, selection.devices) as pool:
        yield pool, stored


def describe(
    pool: WorkerPool, selection: Selection, conditions: Conditions, stored: Stored | None, *, as_json: bool
) -> None:
    """Print the cases that the gate would measure, in order, and the time that this would take."""
    import json

    from opgauge.harness.gate.forecast import forecast

    found = forecast(pool, selection, conditions, stored)
    if as_json:
        typer.echo(json.dumps(found.as_plain(), indent=1))
        return
    for job in found.jobs:
        typer.echo(str(job.subject))
    for subject in found.removed:
        typer.echo(f"{subject}: removed")
    for text in found.notes:
        typer.echo(f"note: {text}")
    typer.echo(str(found))


def load_noise(tree: Path, selection: Selection, settings: Settings, db: str | None) -> Noise:
    """Noise floors of series by `opgauge aa`, from a database that was named; else none."""
    if db is None:
        return {}
    from opgauge.harness.gate.stored import noise_floors
    from opgauge.harness.run.environment import capture
    from opgauge.harness.store import Store

    devices = gating.chosen_devices(selection)
    with Store.open(database_url(db)) as store:
        return noise_floors(store.engine, capture(devices, threads=settings.threads, tree=tree), devices)


def keep_head(run: GateRun, settings: Settings, url: str) -> None:
    """Store the blocks of the head as a run, or tell that its ops, which describe them, cannot be imported."""
    from opgauge.harness.errors import TreeError
    from opgauge.harness.gate.stored import keep
    from opgauge.harness.project import active
    from opgauge.harness.run.environment import capture
    from opgauge.harness.store import Store

    try:
        active.load()
    except TreeError as error:
        typer.echo(f"not stored: {error}", err=True)
        return
    here = capture(run.devices, threads=settings.threads, tree=run.head.path)
    with Store.open(url) as store:
        stored = keep(store, run, here, command_line(sys.argv[1:]))
        typer.echo(f"run {stored} in {store.place}", err=True)


def bisect_code(outcome: GateOutcome, *, broken: bool = False) -> int:
    """The exit code for `git bisect run` that searches for the first slower commit, or for the first broken one."""
    from opgauge.harness.gate.gate import ExitCode

    bad = ExitCode.BROKEN if broken else ExitCode.SLOWER
    good = {ExitCode.PASSED, ExitCode.SLOWER, ExitCode.UNDECIDED} if broken else {ExitCode.PASSED}
    if outcome.code is bad:
        return 1
    return 0 if outcome.code in good else CANNOT_TELL
