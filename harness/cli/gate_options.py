"""Options, filters and conditions that `gate`, `aa`, `inject` and `compare` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import Choice

from opgauge.harness.cli.cluster import spread_device
from opgauge.harness.cli.options import default_device, policy_file, waiver_file

if TYPE_CHECKING:
    from distributed import Client

    from opgauge.harness.gate.pool import WorkerPool
    from opgauge.harness.gate.run import Conditions, GateRun
    from opgauge.harness.gate.selection import Selection
    from opgauge.harness.run.tree import Tree
    from opgauge.harness.settings import Settings

Paths = Annotated[list[Path] | None, typer.Argument(help="Case files or folders; default: the tree's cases/.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only cases with this tag; repeatable. Default: `gate`, if some case has it."),
]
Implementations = Annotated[
    list[str] | None,
    typer.Option(
        "--implementation", "-i", help="Only this implementation; repeatable. Default: all but baselines and peers."
    ),
]
TreeOption = Annotated[
    Path | None,
    typer.Option("--tree", help="Tree of the head: a folder with ops/. Default: found from here.", file_okay=False),
]
BlockS = Annotated[float | None, typer.Option("--block-s", help="Seconds of sampling per side and pair.", min=0.001)]
Pairs = Annotated[
    int | None,
    typer.Option("--pairs", help="Initial pairs of processes. Default: 4.", min=1),
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
MostPairs = Annotated[
    int,
    typer.Option(
        "--most-pairs",
        help="Most pairs of a case that stays undecided; from 10, six more where a change is probable.",
        min=1,
    ),
]
Budget = Annotated[
    float | None, typer.Option("--budget", help="Seconds for the whole command; what is left is undecided.", min=0.1)
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="Policy file; default: the tree's cases/policy.yaml, if it exists.")
]
WaiverFile = Annotated[
    Path | None, typer.Option("--waivers", help="Waiver file; default: the tree's cases/waivers.yaml, if it exists.")
]
GateDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Measure nothing: list the cases in order, and the expected time.")
]


def selected(**given: Sequence[Any] | None) -> Selection:
    """The selection of these options, by the fields of `Selection`; None stands for an option that was not given."""
    from opgauge.harness.gate.selection import Selection

    fields: dict[str, Any] = {field: tuple(values or ()) for field, values in given.items()}
    return Selection(**fields)


def refuse_unwritable(*files: Path | None) -> list[Path]:
    """The files that are named; raises BadParameter for one that cannot be written: before anything is measured."""
    named = [file for file in files if file is not None]
    for file in named:
        faults = {
            f"there is no folder {file.parent} for {file.name}": not file.parent.is_dir(),
            f"{file} is a folder; name a file": file.is_dir(),
            f"{file} cannot be written": not os.access(file if file.exists() else file.parent, os.W_OK),
        }
        for msg in (text for text, is_so in faults.items() if is_so):
            raise typer.BadParameter(msg)
    return named


@contextmanager
def worker_pool(
    trees: dict[str, Tree],
    settings: Settings,
    timeout: float | None,
    client: Client | None = None,
    devices: Sequence[str] = (),
) -> Iterator[WorkerPool]:
    """A pool of workers on two trees, with the limits of the settings; on a cluster's first device, given a client."""
    from opgauge.harness.cluster.pool import ClusterPool
    from opgauge.harness.gate.pool import WorkerPool

    timeout_s, threads, memory_bytes = timeout or settings.timeout_s, settings.threads, settings.memory_bytes
    made: WorkerPool
    if client is None:
        made = WorkerPool(trees, timeout_s=timeout_s, threads=threads, memory_bytes=memory_bytes)
    else:
        made = ClusterPool(
            client, devices[0], trees, timeout_s=timeout_s, threads=threads, memory_bytes=memory_bytes, tell=note
        )
    with made as opened:
        yield opened


def on_one_device(client: Client, selection: Selection) -> Selection:
    """The selection for the one kind of device that a cluster measures on; raises BadParameter for more than one."""
    if len(selection.devices) > 1:
        msg = "a cluster measures on one kind of device at a time: name one"
        raise typer.BadParameter(msg)
    return replace(selection, devices=(spread_device(client, next(iter(selection.devices), None)),))


def load_rules(tree: Path, policy: Path | None, waivers: Path | None = None) -> Conditions:
    """Conditions with the policy and the waivers of these files, else of the tree's, where they exist."""
    from opgauge.harness.gate.policy import Policy, load_policy
    from opgauge.harness.gate.run import Conditions
    from opgauge.harness.gate.waiver import load_waivers
    from opgauge.harness.project.active import measured
    from opgauge.harness.run.tree import CASES

    is_own = measured() is None
    rules = policy or (tree / CASES / "policy.yaml" if is_own else policy_file())
    allowed = waivers or (tree / CASES / "waivers.yaml" if is_own else waiver_file())
    return Conditions(
        policy=load_policy(rules) if policy or rules.is_file() else Policy(),
        waivers=load_waivers(allowed) if waivers or allowed.is_file() else (),
    )


def chosen_devices(selection: Selection) -> list[str]:
    """The selected devices, else the GPU, else the CPU."""
    from opgauge.ops import Device

    return [str(Device.parse(one)) for one in selection.devices or [default_device()]]


def line(run: GateRun) -> str:
    """The outcome of a run and its duration, in one line."""
    from opgauge.harness.gate.report import headline

    return f"{headline(run)}, {run.seconds:.0f} s"


def note(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(text, err=True)


def tell(text: str) -> None:
    """Overwrite the progress line of a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        typer.echo(f"\r\033[K{text}", err=True, nl=False)
