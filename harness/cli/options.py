"""Options that several verbs share, and the choices that they make."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.counting import counted
from opgauge.harness.errors import ConfigurationError
from opgauge.harness.project.active import active, is_unconfigured
from opgauge.harness.project.configuration import CASES, projects_below
from opgauge.harness.settings import ROOT

if TYPE_CHECKING:
    from opgauge.harness.case.case import Case
    from opgauge.harness.run.progress import Progress

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        help="Database: an SQLite file, or a URL. Default: OPGAUGE_DB, the project's, or .opgauge/opgauge.db.",
    ),
]
Paths = Annotated[list[Path] | None, typer.Argument(help="Case files or folders; default: the project's.")]
Ops = Annotated[
    list[str] | None, typer.Option("--op", help="Only this op; repeatable. Filters take * and ?, or /regex/.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only cases with this tag; repeatable.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help="Only this dtype; repeatable.")]
Cases = Annotated[
    list[str] | None, typer.Option("--case", help="Only this op, op/case (with * and ?) or case id; repeatable.")
]
Names = Annotated[list[str] | None, typer.Option("--name", help="Only names that contain this; repeatable.")]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", "--backend", help="cpu, cuda or cuda:N; repeatable. Default: cuda, else cpu."),
]
Implementations = Annotated[
    list[str] | None, typer.Option("--implementation", "-i", help="Only this implementation; repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Measure nothing: list the trials and the expected time.")]
ProgressOption = Annotated[
    str,
    typer.Option(
        "--progress", metavar="STYLE", help="auto (a bar on a terminal), plain, json (a line per trial) or none."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only; the exit code gives the outcome.")]
SampleBudget = Annotated[float | None, typer.Option("--budget", help="Seconds of sampling per trial.", min=0.001)]
Timeout = Annotated[float | None, typer.Option("--timeout", help="Seconds that a trial may take.", min=0.1)]
Gpus = Annotated[
    str | None, typer.Option("--gpus", help="Spread over GPUs of this host: `all`, or numbers such as 0,2.")
]
Scheduler = Annotated[
    str | None, typer.Option("--cluster", metavar="SCHEDULER", help="Spread over hosts, such as tcp://host:8786.")
]
UNCONFIGURED = "nothing is configured here: these are the ops that opgauge ships; `opgauge init` writes an example"
"""Note of commands without a project."""
_PASSWORD = re.compile(r"(://[^:/@]*:).*@", re.DOTALL)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def database_url(given: str | None) -> str:
    """URL of the database to use; a plain path names an SQLite file.

    Without `--db` it is that of `OPGAUGE_DB` or of the project, else `.opgauge/opgauge.db`, announced when it is
    created.
    """
    from opgauge.harness.project.folder import find_database

    url, is_new = find_database(given)
    if is_new:
        file = url.removeprefix("sqlite:///")
        typer.echo(f"runs are stored in {file} (change it by --db, OPGAUGE_DB or the configuration)", err=True)
    return url


def command_line(arguments: Sequence[str]) -> str:
    """The command in the form that runs store: without the password of a database URL."""
    return shlex.join(["opgauge", *(_PASSWORD.sub(r"\1***@", one) for one in arguments)])


def default_device() -> str:
    """The device `cuda` if there is one, else `cpu`."""
    from opgauge.ops import available

    return "cuda" if "cuda" in available() else "cpu"


def chosen_devices(given: Sequence[str] | None) -> list[str]:
    """The named devices, spelt out (`cuda:0`), else the default one.

    Raises BackendError for a device that this machine does not have.
    """
    from opgauge.ops import Device
    from opgauge.ops._core.backend import require_device

    devices = [Device.parse(name) for name in dict.fromkeys(given or [default_device()])]
    for device in devices:
        require_device(device)
    return [str(device) for device in devices]


def open_progress(style: str, *, quiet: bool) -> Callable[[int], Progress]:
    """A function that opens a progress display of that style for a number of trials."""
    from opgauge.harness.run.progress import Progress, ProgressStyle

    if style not in set(ProgressStyle):
        msg = f"{style!r} is none of {', '.join(ProgressStyle)}"
        raise typer.BadParameter(msg, param_hint="--progress")
    chosen = ProgressStyle.NONE if quiet else ProgressStyle(style)
    return lambda total: Progress(total, chosen)


def case_paths() -> list[Path]:
    """Case files and folders of the project; the shipped ones if there is none, or if it has no ops of its own.

    Raises ConfigurationError for a project whose ops have no cases.
    """
    project = active()
    if project is None or not (project.ops or project.cases):
        return [ROOT / CASES]
    if not (project.cases or project.builtin):
        msg = f"{project.file} names ops and no cases; without that key they are in {project.root / CASES}"
        raise ConfigurationError(msg)
    return list(project.cases) or [ROOT / CASES]


def tell_unconfigured(notify: Callable[[str], None] | None = None) -> None:
    """Tell, on standard error by default, that a command uses the shipped ops since no project is configured here.

    Raises ConfigurationError if folders of the repository below have projects, which are meant then.
    """
    if is_unconfigured():
        found = projects_below(Path.cwd())
        if found:
            files = ", ".join(str(file.relative_to(Path.cwd())) for file in found[:3]) + ", …" * (len(found) > 3)
            msg = f"nothing is configured here, but below it: {files}; change to that folder, or name the file"
            msg += " by --config; --builtin uses the ops that opgauge ships"
            raise ConfigurationError(msg)
        (notify or partial(typer.echo, err=True))(UNCONFIGURED)


def load(paths: Sequence[Path] | None, *, ops: Sequence[str] | None = None) -> list[Case]:
    """The cases of files and folders; the project's when none are named.

    ops: filters; files without cases of a matching op are not read. Raises FilterError for one without match.
    """
    from opgauge.harness.case.file import load_cases

    return load_cases(paths or _files_of(_known_ops(ops or ())) or case_paths())


def _known_ops(patterns: Sequence[str]) -> list[str]:
    """The registered ops that the filters select."""
    from opgauge.harness.case.filters import matches, require_matches
    from opgauge.ops import all_ops

    names = [op.name for op in all_ops()] if patterns else []
    require_matches({"--op": patterns}, {"--op": names})
    return [name for name in names if any(matches(pattern, name) for pattern in patterns)]


def _files_of(ops: Sequence[str]) -> list[Path]:
    """The project's files with cases of `ops`."""
    named = re.compile(rf"^op: (?:{'|'.join(map(re.escape, ops))})\s*$", re.MULTILINE)
    files = [file for path in case_paths() for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    return [file for file in files if ops and named.search(file.read_text(encoding="utf-8"))]


def select(
    cases: Sequence[Case],
    *,
    ops: Sequence[str] | None,
    tags: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    names: Sequence[str] | None,
    patterns: Sequence[str] | None,
) -> list[Case]:
    """The cases that match a value of each filter. patterns: of `--case`.

    Raises FilterError for values that match no case at all, NothingError where no case matches all filters together.
    """
    from opgauge.harness.case.filters import matches_any, matches_any_case, require_cases, require_matches
    from opgauge.harness.errors import NothingError

    known = {
        "--op": {case.op for case in cases},
        "--tag": {tag for case in cases for tag in case.tags},
        "--dtype": {case.dtype for case in cases},
        "--name": {case.name for case in cases},
    }
    require_matches({"--op": ops, "--tag": tags, "--dtype": dtypes, "--name": names}, known, anywhere=("--name",))
    require_cases(patterns, ((f"{case.op}/{case.name}", case.id) for case in cases))
    found = [
        case
        for case in cases
        if matches_any(ops, [case.op])
        and matches_any(tags, case.tags)
        and matches_any(dtypes, [case.dtype])
        and matches_any(names, [case.name], anywhere=True)
        and matches_any_case(patterns, f"{case.op}/{case.name}", case.id)
    ]
    if not found:
        shown = "; ".join(f"{option}: {', '.join(sorted(known[option]))}" for option in ("--op", "--tag", "--dtype"))
        msg = f"none of {counted(len(cases), 'case')} matches all filters. Values of these cases: {shown}"
        raise NothingError(msg)
    return found


def select_implementations(cases: Sequence[Case], patterns: Sequence[str] | None) -> list[str] | None:
    """The implementations that the filters select, None without filters.

    Raises FilterError for one that matches no implementation of the ops of `cases`. Experimental implementations
    are selected by their exact name only.
    """
    from opgauge.harness.case.filters import matches, require_matches
    from opgauge.ops import kernels

    if not patterns:
        return None
    ops = {case.op for case in cases}
    known = {item.key.implementation: item.experimental for item in kernels() if item.key.op in ops}
    require_matches({"--implementation": patterns}, {"--implementation": known})
    return [
        name
        for name, experimental in known.items()
        if name in patterns or (not experimental and any(matches(pattern, name) for pattern in patterns))
    ]


def waiver_file() -> Path:
    """Waivers of the project: the configured file, else waivers.yaml beside its cases."""
    project = active()
    if project is not None and project.waivers is not None:
        return project.waivers
    return rules_folder() / "waivers.yaml"


def policy_file() -> Path:
    """Policy of the project: the configured file, else policy.yaml beside its cases."""
    project = active()
    if project is not None and project.policy is not None:
        return project.policy
    return rules_folder() / "policy.yaml"


def rules_folder() -> Path:
    """The first folder of cases, or the folder of the first case file."""
    first = case_paths()[0]
    return first if first.is_dir() else first.parent
