"""Options that several verbs share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from opgauge.harness.settings import ROOT

if TYPE_CHECKING:
    from opgauge.harness.case.case import Case

Database = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Database; the default is OPGAUGE_DB, or sqlite:///opgauge.db."),
]
Paths = Annotated[list[Path] | None, typer.Argument(help="Case files or folders; the shipped ones if none.")]
Ops = Annotated[list[str] | None, typer.Option("--op", help="Only this op; repeatable.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only cases with this tag; repeatable.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help="Only this dtype; repeatable.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="Only names with this pattern; repeatable.")]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", "--backend", help="cpu, cuda or cuda:N; repeatable. Default: cuda, else cpu."),
]
SampleBudget = Annotated[float | None, typer.Option("--budget", help="Seconds of sampling per trial.", min=0.001)]
Timeout = Annotated[float | None, typer.Option("--timeout", help="Seconds that a trial may take.", min=0.1)]
_PASSWORD = re.compile(r"(://[^:/@]*:).*@", re.DOTALL)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def database_url(given: str | None) -> str:
    """The database to use."""
    from opgauge.harness.settings import load_settings

    return given or load_settings().database


def command_line(arguments: Sequence[str]) -> str:
    """What was typed, as runs keep it and pages show it: no password of a database's URL."""
    return shlex.join(["opgauge", *(_PASSWORD.sub(r"\1***@", one) for one in arguments)])


def default_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    from opgauge.ops import available

    return "cuda" if "cuda" in available() else "cpu"


def shipped_cases() -> Path:
    """Folder of the cases that come with opgauge."""
    return ROOT / "cases"


def load(paths: Sequence[Path] | None, *, ops: Sequence[str] | None = None) -> list[Case]:
    """The cases of files and folders; the shipped ones when none are named.

    ops: shipped files without cases of any of these are not read.
    """
    from opgauge.harness.case.file import load_cases

    return load_cases(paths or _files_of(ops or ()) or [shipped_cases()])


def _files_of(ops: Sequence[str]) -> list[Path]:
    """The shipped files that hold cases of `ops`."""
    named = re.compile(rf"^op: (?:{'|'.join(map(re.escape, ops))})\s*$", re.MULTILINE)
    files = sorted(shipped_cases().glob("*.yaml")) if ops else []
    return [file for file in files if named.search(file.read_text(encoding="utf-8"))]


def select(
    cases: Sequence[Case],
    *,
    ops: Sequence[str] | None,
    tags: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    names: Sequence[str] | None,
) -> list[Case]:
    """The cases that have one of each kind of thing that is asked for. Raises NothingError where none has."""
    from opgauge.harness.errors import NothingError

    found = [
        case
        for case in cases
        if (not ops or case.op in ops)
        and (not tags or set(tags) & set(case.tags))
        and (not dtypes or case.dtype in dtypes)
        and (not names or any(fnmatch(case.name, f"*{pattern}*") for pattern in names))
    ]
    if not found:
        there = {
            "ops": sorted({case.op for case in cases}),
            "tags": sorted({tag for case in cases for tag in case.tags}),
            "dtypes": sorted({case.dtype for case in cases}),
        }
        shown = "; ".join(f"{kind}: {', '.join(values)}" for kind, values in there.items())
        msg = f"none of {len(cases)} cases is selected. There are {shown}"
        raise NothingError(msg)
    return found
