"""`opgauge init`: a working example in the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CONFIGURATION = """\
# Files and modules that register ops, and their cases. `opgauge config` lists every key.
ops = ["kernels_bench.py"]
cases = "kernels_cases.yaml"

# Files that count as a change of an op, for `opgauge gate --changed`; without this table every file does.
# [changed]
# scaled_sum = ["kernels/scaled_sum*"]
"""
"""Written opgauge.toml."""
BENCH = '''\
"""Kernels to measure. Replace the op by yours: the reference says what is right, implementations compute it."""

import numpy as np
import opgauge


@opgauge.op
def scaled_sum(x, y, *, factor: float = 2.0):
    """x plus a multiple of y. Positional arguments are inputs, keyword-only ones are parameters."""
    return x + factor * y


@scaled_sum.implementation("plain", device="cpu")
def plain(x, y, *, factor):
    """Returns the output. With `arrays="torch"` it would get torch tensors, with `device="cuda"` CuPy arrays."""
    return x + x.dtype.type(factor) * y


@scaled_sum.implementation("in_two_steps", device="cpu", variant=True)
def in_two_steps(x, y, out, *, factor):
    """Fills the output; a variant is measured for comparison and gated only where it is named."""
    np.multiply(y, x.dtype.type(factor), out=out)
    np.add(out, x, out=out)
'''
"""Written file that registers an op."""
CASES = """\
# yaml-language-server: $schema=.opgauge/case.schema.json
op: scaled_sum
cases:
  - name: small
    tags: [smoke, gate]
    shapes: {x: [33, 7], y: [33, 7]}
    dtype: [float32, float64]
  - name: large
    tags: [gate]
    shapes: {x: [2048, 2048], y: [2048, 2048]}
    dtype: float32
"""
"""Written case file."""
SCHEMA = "case.schema.json"
"""Name of the schema file."""
FILES = {"opgauge.toml": CONFIGURATION, "kernels_bench.py": BENCH, "kernels_cases.yaml": CASES}
"""Text of each written file, by name."""


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write; the current folder if none.")] = Path(),
) -> None:
    """Write a working example: opgauge.toml, a file with an op and two implementations, and its cases.

    Files that are there already are left alone; the command then ends with 2. The schema of the cases, for editors,
    goes to .opgauge/, which git ignores; `opgauge schema -o .opgauge/case.schema.json` writes it again for more ops.

    Example: opgauge init && opgauge run --tag smoke
    """
    present = [name for name in FILES if (folder / name).exists()]
    if present:
        typer.echo(f"{', '.join(present)} is there already: nothing is written", err=True)
        raise typer.Exit(2)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    _write_schema(folder)
    typer.echo(f"wrote {', '.join(FILES)}\nnext: opgauge run --tag smoke; after a commit: opgauge gate")


def _write_schema(folder: Path) -> None:
    from opgauge.harness.project.active import ProjectChoice, choose, load
    from opgauge.harness.project.configuration import FILE, FOLDER
    from opgauge.harness.project.folder import make_folder

    choose(ProjectChoice(file=folder / FILE))
    load()
    from opgauge.harness.case.schema import schema_text  # imports ops: the shipped ones unless a project is chosen

    made, _ = make_folder(folder.resolve() / FOLDER)
    (made / SCHEMA).write_text(schema_text(), encoding="utf-8")
