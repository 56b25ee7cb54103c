"""`opgauge gate`: whether this tree is slower or broken, against another commit or stored results."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import Choice
from opgauge.harness.cli.options import (
    AsJson,
    Database,
    Devices,
    Dtypes,
    Names,
    Ops,
    Timeout,
    command_line,
    database_url,
    default_device,
    policy_file,
    waiver_file,
)

if TYPE_CHECKING:
    from opgauge.harness.gate.gate import GateOutcome
    from opgauge.harness.gate.pool import WorkerPool
    from opgauge.harness.gate.run import Conditions, GateRun, Noise
    from opgauge.harness.gate.selection import Selection
    from opgauge.harness.run.tree import Tree
    from opgauge.harness.settings import Settings

USAGE, NOTHING = 2, 5
STOP = 255
CANNOT_TELL = 125
"""What `git bisect run` takes for: stop at once, and skip this commit."""

Paths = Annotated[list[Path] | None, typer.Argument(help="Case files or folders; the tree's cases/ if none.")]
Cases = Annotated[
    list[str] | None, typer.Option("--case", help="Only this op, op/case (with * and ?) or case id; repeatable.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only cases with this tag; repeatable. Where no case is named: gate, if any has it."),
]
Implementations = Annotated[
    list[str] | None,
    typer.Option("--implementation", "-i", help="Only this one; repeatable. Default: ours, but for the baseline."),
]
TreeOption = Annotated[
    Path | None, typer.Option("--tree", help="The head: a folder with ops/. Default: here or above.", file_okay=False)
]
BlockS = Annotated[float | None, typer.Option("--block-s", help="Seconds of sampling per trial and block.", min=0.001)]
Pairs = Annotated[
    int | None,
    typer.Option("--pairs", help="Pairs of processes at first. Default: 6 if interleaved, else 4.", min=1),
]
Threads = Annotated[int, typer.Option("--threads", help="Threads of each process on the CPU.", min=1)]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="interleaved: samples of two live processes alternate. blocks: one process after the other. "
        "Default: interleaved on the CPU.",
        click_type=Choice(("interleaved", "blocks")),
    ),
]
MostPairs = Annotated[int, typer.Option("--most-pairs", help="Pairs for what stays undecided.", min=1)]
Budget = Annotated[
    float | None, typer.Option("--budget", help="Seconds in all, after which no more pairs are begun.", min=0.1)
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="Policy file; cases/policy.yaml of the tree if there is one.")
]


def gate(
    paths: Paths = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REF", help="Commit to compare with; default: the fork point."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="RUN|BRANCH", help="Compare with stored results of the same machine."),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only ops whose files differ; shared code counts for all.")
    ] = False,
    trust_hash: Annotated[
        bool, typer.Option("--trust-hash", help="Skip kernels whose compiled code did not change, and say so.")
    ] = False,
    case: Cases = None,
    op: Ops = None,
    tag: Tags = None,
    dtype: Dtypes = None,
    name: Names = None,
    implementation: Implementations = None,
    device: Devices = None,
    tree: TreeOption = None,
    policy: PolicyFile = None,
    waivers: Annotated[
        Path | None, typer.Option("--waivers", help="Waiver file; cases/waivers.yaml of the tree if there is one.")
    ] = None,
    pairs: Pairs = None,
    most_pairs: MostPairs = 10,
    block_s: BlockS = None,
    threads: Threads = 1,
    method: Method = None,
    counts: Annotated[
        bool, typer.Option("--counts", help="Also count instructions on the CPU (experimental, slow).")
    ] = False,
    budget: Budget = None,
    timeout: Timeout = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a report that explains itself.")
    ] = None,
    as_json: AsJson = False,
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Exit codes for git bisect run: 1 slower, 0 not, 125 cannot tell, 255 stop."),
    ] = False,
    bisect_broken: Annotated[
        bool, typer.Option("--bisect-broken", help="The same, but 1 is broken, and slower is not.")
    ] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Keep this tree's blocks as a run, to compare --against.")
    ] = False,
    db: Database = None,
) -> None:
    """Compare this tree's kernels with another's: slower, faster, the same, broken, or undecided.

    Both trees are measured by this harness in paired blocks of fresh processes, A B B A, one at a time.
    Ends with 0 passed, 1 slower, 2 usage or case-file error, 3 broken, 4 undecided, 5 nothing measured. Report files
    are written in every case, with the reason where nothing was measured.

    Example: opgauge gate --base main --changed --markdown gate.md
    """
    if base is not None and against is not None:
        msg = "name --base REF or --against RUN|BRANCH, not both"
        raise typer.BadParameter(msg)
    if against is not None and trust_hash:
        msg = "--trust-hash needs --base: stored results come without their code"
        raise typer.BadParameter(msg)
    started = monotonic()
    refuse_missing_folders(junit, markdown)
    asked = selected(
        paths=paths,
        cases=case,
        ops=op,
        tags=tag,
        dtypes=dtype,
        names=name,
        implementations=implementation,
        devices=device,
    )
    selection = replace(asked, changed=changed, trust_hash=trust_hash)
    with _never_a_verdict(bisect=bisect or bisect_broken):
        from opgauge.harness.cli.gate_reports import Reports, print_table, reported, write
        from opgauge.harness.gate.gate import Schedule
        from opgauge.harness.run.tree import default_base, find_tree
        from opgauge.harness.settings import load_settings

        settings = load_settings()
        head = find_tree(tree or Path.cwd())
        reports = Reports(as_json=as_json, junit=junit, markdown=markdown)
        with reported(head, base or against or "", reports):
            rules = load_rules(head, policy, waivers)
            conditions = replace(
                rules,
                noise=load_noise(head, selection, settings, db),
                schedule=Schedule(start=min(pairs or 0, most_pairs), most=most_pairs),
                block_s=block_s,
                threads=threads,
                counts=counts,
                # stored blocks are compared with blocks
                method="blocks" if store else method,
                budget_s=budget,
            )
            if against is None:
                run = against_commit(head, base or default_base(head), selection, conditions, settings, timeout)
            else:
                run = against_stored(head, against, selection, conditions, settings, timeout, database_url(db))
            run = replace(run, seconds=monotonic() - started)
        write(run, reports)
        print_table(run, reports)
        if store:
            keep_head(run, settings, database_url(db))
    if bisect or bisect_broken:
        raise typer.Exit(bisect_code(run.outcome, broken=bisect_broken))
    raise typer.Exit(int(run.outcome.code))


def selected(**given: Sequence[Any] | None) -> Selection:
    """What options ask for, by the fields of Selection; None asks for nothing."""
    from opgauge.harness.gate.selection import Selection

    fields: dict[str, Any] = {field: tuple(values or ()) for field, values in given.items()}
    return Selection(**fields)


def refuse_missing_folders(*files: Path | None) -> None:
    """Before anything is measured: what is to be written must have a folder."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            msg = f"there is no folder {file.parent} for {file.name}"
            raise typer.BadParameter(msg)


@contextmanager
def _never_a_verdict(*, bisect: bool) -> Iterator[None]:
    """An error ends with 2 or 5, in a bisection with "stop" or "skip": never with what means slower."""
    from opgauge.harness.errors import HarnessError

    try:
        yield
    except HarnessError as error:
        typer.echo(f"opgauge: {error}", err=True)
        is_usage = error.exit_code == USAGE
        code = (STOP if is_usage else CANNOT_TELL) if bisect else (USAGE if is_usage else NOTHING)
        raise typer.Exit(code) from error
    except Exception as error:
        typer.echo(traceback.format_exc(), err=True)
        raise typer.Exit(STOP if bisect else NOTHING) from error


def against_commit(
    head: Path, ref: str, selection: Selection, conditions: Conditions, settings: Settings, timeout: float | None
) -> GateRun:
    """Measure `head` and the commit `ref` of its repository."""
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.gate.run import gate as run_gate
    from opgauge.harness.project.active import build
    from opgauge.harness.run.environment import commit
    from opgauge.harness.run.tree import Tree, checkout, resolve

    sha = resolve(head, ref)
    build(head)
    with checkout(head, sha) as beside:
        build(beside)
        trees = {BASE: Tree(beside, sha, sha[:12] if ref == sha else ref), HEAD: Tree(head, commit(head), "this tree")}
        with worker_pool(trees, settings, timeout) as opened:
            return run_gate(opened, selection, conditions, tell=tell)


def against_stored(
    head: Path,
    name: str,
    selection: Selection,
    conditions: Conditions,
    settings: Settings,
    timeout: float | None,
    url: str,
) -> GateRun:
    """Measure `head`, and compare with a stored run or a branch."""
    from opgauge.harness.gate.record import BASE, HEAD
    from opgauge.harness.gate.run import gate as run_gate
    from opgauge.harness.gate.stored import load
    from opgauge.harness.run.environment import capture
    from opgauge.harness.run.tree import Tree
    from opgauge.harness.store import Store

    devices = chosen_devices(selection)
    here = capture(devices, threads=settings.threads, tree=head)
    with Store.open(url) as store:
        stored = load(store.engine, name, head, here, devices)
    trees = {BASE: stored.tree, HEAD: Tree(head, here.commit, "this tree")}
    with worker_pool(trees, settings, timeout) as opened:
        return run_gate(opened, selection, conditions, tell=tell, stored=stored)


@contextmanager
def worker_pool(trees: dict[str, Tree], settings: Settings, timeout: float | None) -> Iterator[WorkerPool]:
    """Workers on two trees, as the settings want them."""
    from opgauge.harness.gate.pool import WorkerPool

    with WorkerPool(
        trees,
        timeout_s=timeout or settings.timeout_s,
        threads=settings.threads,
        memory_bytes=settings.memory_bytes,
    ) as opened:
        yield opened


def load_rules(tree: Path, policy: Path | None, waivers: Path | None = None) -> Conditions:
    """Conditions with the policy and waivers of the files named, else of the tree's cases, where there are any."""
    from opgauge.harness.gate.policy import Policy, load_policy
    from opgauge.harness.gate.run import Conditions
    from opgauge.harness.gate.waiver import load_waivers
    from opgauge.harness.project.active import measured
    from opgauge.harness.run.tree import CASES

    is_own = measured() is None
    rules = policy or (tree / CASES / "policy.yaml" if is_own else policy_file())
    excuses = waivers or (tree / CASES / "waivers.yaml" if is_own else waiver_file())
    return Conditions(
        policy=load_policy(rules) if policy or rules.is_file() else Policy(),
        waivers=load_waivers(excuses) if waivers or excuses.is_file() else (),
    )


def load_noise(tree: Path, selection: Selection, settings: Settings, db: str | None) -> Noise:
    """How far series have been seen to move by themselves: by `opgauge aa`, in a database that is named."""
    if db is None:
        return {}
    from opgauge.harness.gate.stored import noise_floors
    from opgauge.harness.run.environment import capture
    from opgauge.harness.store import Store

    devices = chosen_devices(selection)
    with Store.open(database_url(db)) as store:
        return noise_floors(store.engine, capture(devices, threads=settings.threads, tree=tree), devices)


def chosen_devices(selection: Selection) -> list[str]:
    """The devices asked for, else the GPU, else the CPU."""
    from opgauge.ops import Device

    return [str(Device.parse(one)) for one in selection.devices or [default_device()]]


def keep_head(run: GateRun, settings: Settings, url: str) -> None:
    """Store what was measured of the head."""
    from opgauge.harness.gate.stored import keep
    from opgauge.harness.run.environment import capture
    from opgauge.harness.store import Store

    here = capture(run.devices, threads=settings.threads, tree=run.head.path)
    with Store.open(url) as store:
        stored = keep(store, run, here, command_line(sys.argv[1:]))
        typer.echo(f"run {stored} in {store.url}", err=True)


def bisect_code(outcome: GateOutcome, *, broken: bool = False) -> int:
    """The exit code for `git bisect run`, which looks for the slower commit, or for the broken one."""
    from opgauge.harness.gate.gate import ExitCode

    bad = ExitCode.BROKEN if broken else ExitCode.SLOWER
    good = {ExitCode.PASSED, ExitCode.SLOWER, ExitCode.UNDECIDED} if broken else {ExitCode.PASSED}
    if outcome.code is bad:
        return 1
    return 0 if outcome.code in good else CANNOT_TELL


def line(run: GateRun) -> str:
    """A run in one line."""
    from opgauge.harness.gate.report import headline

    return f"{headline(run)}, {run.seconds:.0f} s"


def tell(text: str) -> None:
    """Say on a terminal what goes on."""
    if sys.stderr.isatty():
        typer.echo(f"\r\033[K{text}", err=True, nl=False)
