"""Generated documentation: docs/commands.md from help texts, tables of docs/performance.md from committed runs.

`make docs` rewrites docs/commands.md, and the parts of docs/performance.md between `<!-- NAME:start -->` and `<!--
NAME:end -->`. A test fails if they are outdated, or if a command is missing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import Submission, parse, read_submission
from tools.addends import Addend

ROOT = Path(__file__).parent.parent
"""Root of the repository."""
COMMANDS = ROOT / "docs" / "commands.md"
"""Generated page of commands."""
EXPORTS = {name: ROOT / "tests" / "data" / name / "seed.json" for name in ("h200", "h100", "cpu")}
"""Committed runs by name."""
PERFORMANCE = ROOT / "docs" / "performance.md"
"""Page with generated tables."""
FULL_RUN = ROOT / "tests" / "data" / "h200" / "full.json"
"""Committed run of the cases tagged full."""
COUNTERS = ROOT / "tests" / "data" / "h200-counters.json"
"""Counters that `python -m tools.counters` wrote on the GPU of that run."""
GOALS = {
    ("p_norm_grad · design-case-1", "float32", "optimized"): 39,
    ("p_norm_grad · design-case-2", "float32", "optimized"): 39,
    ("p_norm_grad · design-shape[porder=1]", "float32", "optimized"): 40,
    ("p_norm_grad · design-shape[porder=2.5]", "float32", "optimized"): 40,
    ("p_norm_grad · design-shape[porder=inf]", "float32", "optimized"): 40,
    ("p_norm_grad · design-case-4", "float16", "optimized"): 25,
    ("p_norm_grad · design-case-5", "float16", "optimized"): 25,
    ("p_norm_grad · design-shape-16-bit[porder=inf]", "float16", "optimized"): 25,
    ("p_norm · design-shape[porder=2]", "float32", "optimized"): 22,
    ("p_norm · design-shape[porder=3]", "float32", "optimized"): 22,
    ("p_norm · design-shape[porder=2]", "float16", "optimized"): 13,
    ("p_norm · design-shape[porder=3]", "float16", "optimized"): 13,
    ("lerp_grad · design-case-1", "float32", "optimized"): 9,
    ("lerp_grad · tensor-weight", "float32", "optimized"): 9,
    ("lerp_grad · design-case-2", "float64", "optimized"): 24,
    ("lerp_grad · large", "float32", "optimized"): 305,
    ("deformable_conv · design-case-1", "float32", "optimized"): 110,
    ("deformable_conv · design-case-1", "float32", "tf32"): 70,
    ("deformable_conv · cfg0-normal", "float16", "optimized"): 60,
    ("conv_data_grad · conv2_x-channels-first-with-add", "float32", "optimized"): 110,
    ("conv_data_grad · conv3_x-channels-first-with-add", "float32", "optimized"): 100,
    ("conv_data_grad · conv4_x-channels-first-with-add", "float32", "optimized"): 95,
    ("conv_data_grad · conv2_x-channels-first-with-add", "float16", "optimized"): 40,
    ("conv_data_grad · conv2_x-channels-last-with-add", "float16", "optimized"): 40,
    ("normalization · conv2_x-channels-first-with-add", "float32", "optimized"): 80,
    ("normalization · conv3_x-channels-first-with-add", "float32", "optimized"): 48,
    ("normalization · conv4_x-channels-first-with-add", "float32", "optimized"): 28,
    ("normalization · conv5_x-channels-first-with-add", "float32", "optimized"): 18,
    ("normalization · conv2_x-channels-first-with-add", "float16", "optimized"): 55,
    ("normalization · conv2_x-channels-last-with-add", "float16", "optimized"): 55,
}
"""Targets in microseconds on an H200, cold, by case, dtype and implementation."""
MANUAL = """# Commands

`make docs` writes this page from the help texts.

Exit codes of `run`: 0 every result of ours is valid, 2 a usage, filter or case-file error, 3 one of our own
implementations is wrong or broken, 5 nothing was measured, 130 interrupted (143 by SIGTERM, 129 by SIGHUP). Exit codes
of `gate` are in [the gate](gate.md).

Filters (`--op`, `--tag`, `--dtype`, `--name`, `-i`) take exact values, `*` and `?`, or `/regex/`; `--case`
an op, `op/name` or an id. Every value must match something.

| setting (environment variable) | meaning |
|---|---|
| `OPGAUGE_DB` | database: a path, or a URL |
| `OPGAUGE_BUDGET_S`, `OPGAUGE_TIMEOUT_S` | seconds of sampling per trial (0.4), seconds for a kernel (120) |
| `OPGAUGE_THREADS`, `OPGAUGE_MEMORY_BYTES` | CPUs of a worker, and its address space; unlimited by default |
| `OPGAUGE_COMMIT`, `OPGAUGE_BRANCH` | commit and branch of runs, where git does not know them |
| `OPGAUGE_SCHEDULER` | address of the cluster that the dashboard shows, such as `tcp://host:8786` |
| `OPGAUGE_TUNING` | file of launch parameters that takes precedence over `ops/tuning/<model>.json` |
| `OPGAUGE_TOKEN` | token that `push` sends to a service |
"""
"""Head of docs/commands.md."""
LIBRARIES = ("cupy", "torch", "torchvision", "nvrtc", "numpy", "numba", "python")
"""Libraries whose versions stand above a table."""
WIDTH = 96
"""Columns of a help text."""


def performance() -> dict[str, str]:
    """Every generated part of docs/performance.md by name."""
    run = _read(FULL_RUN)
    counted = json.loads(COUNTERS.read_text(encoding="utf-8"))
    tables = {"peers": peers(run), "goals": goals(run), "counters": counters(counted), "addends": addends(run)}
    return {**{name: figures(path) for name, path in EXPORTS.items()}, **tables}


def insert(text: str, found: Mapping[str, str]) -> str:
    """`text` with its marked parts replaced. Raises ValueError for a part that is not marked."""
    for name, content in found.items():
        before, start, rest = text.partition(f"<!-- {name}:start -->\n")
        _, end, after = rest.partition(f"<!-- {name}:end -->")
        if not start or not end:
            msg = f"no part is marked {name}"
            raise ValueError(msg)
        text = f"{before}{start}{content}\n{end}{after}"
    return text


def commands() -> str:
    """A line for each command: its name and the first sentence of its help."""
    lines = ["| command | |", "|---|---|"]
    for name, text in help_texts():
        _, _, body = text.partition("\n\n")
        paragraph = " ".join(body.partition("\n\n")[0].split())
        lines.append(f"| `{name}` | {re.split(r'[.;] ', paragraph)[0].rstrip('.')} |")
    return "\n".join(lines)


def manual() -> str:
    """The help text of every command, as docs/commands.md."""
    parts = [f"## `{name}`\n\n```text\n{text}\n```" for name, text in help_texts()]
    return "\n\n".join((MANUAL, commands(), *parts)) + "\n"


def help_texts() -> Iterator[tuple[str, str]]:
    """Every command's full name and help, in order."""
    from opgauge.harness.cli.app import app

    root = typer.main.get_command(app)
    yield from _walk(root, typer.Context(root, info_name="opgauge", terminal_width=WIDTH, max_content_width=WIDTH))


def _walk(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        lines = command.get_help(context).rstrip().splitlines()
        yield context.command_path, "\n".join(line.rstrip() for line in lines)
    for name, child in subcommands.items():
        if not child.hidden:
            options = {"info_name": name, "parent": context, "terminal_width": WIDTH, "max_content_width": WIDTH}
            yield from _walk(child, typer.Context(child, **options))


def figures(path: Path) -> str:
    """A committed run as a table, with its origin."""
    from opgauge.harness.report.columns import table
    from opgauge.harness.report.render import ceilings_line, comparison, gaps_line
    from opgauge.harness.result.summary import rows

    run = _read(path)
    reached, found = _reached(run), rows(run.results)
    parts = (_origin(run), _markdown(table(comparison(found, reached, variants=False))), gaps_line(found))
    return "\n\n".join((*(part for part in parts if part), f"{ceilings_line(reached)}."))


def peers(run: Submission) -> str:
    """A committed run against the fastest peer of each case, slowest first, with counts."""
    from opgauge.harness.report.columns import table
    from opgauge.harness.report.render import against_peers
    from opgauge.harness.result.summary import rows, sort_rows

    found = sort_rows([row for row in rows(run.results) if row.against_peer is not None], "slowest")
    standings = Counter(row.standing for row in found)
    counted = ", ".join(f"{standings[name]} {name}" for name in ("faster", "within noise", "slower"))
    counts = f"Of {len(found)} cases: {counted}."
    return "\n\n".join((_origin(run), counts, _markdown(table(against_peers(found, _reached(run))))))


def goals(run: Submission) -> str:
    """Targets and the times of a committed run, in the order of GOALS."""
    from opgauge.harness.report.render import label, ratio_text, share_text
    from opgauge.harness.result.summary import OPTIMIZED, rows
    from opgauge.harness.result.time_text import time_text

    ceilings = _reached(run)
    found = {(label(row), row.dtype): row for row in rows(run.results)}
    table = Table("op · case", "dtype", "by")
    for name in ("goal", "reached", "÷ peer", "ceil"):
        table.add_column(name, justify="right")
    table.add_column("")
    for (name, dtype, implementation), goal_us in GOALS.items():
        row = found[name, dtype]
        taken = row.median_ns(implementation) or inf
        ratio = ratio_text(row.against_peer if implementation == OPTIMIZED else None)
        share = share_text(row.results.get(implementation), ceilings)
        verdict = "met" if taken <= goal_us * 1e3 else f"{taken / goal_us / 10 - 100:.2g} % more"
        table.add_row(name, dtype, implementation, f"{goal_us} µs", time_text(taken), ratio, share, verdict)
    return _markdown(table)


def counters(counted: Iterable[Mapping[str, Any]]) -> str:
    """Hardware counters of kernels that miss their goal, beside copies."""
    from opgauge.harness.result.time_text import time_text

    table = Table("op · case", "dtype")
    for name in ("goal", "kernel", "moved", "TB/s", "memory", "L2", "issue", "warps", "registers"):
        table.add_column(name, justify="right")
    for one in counted:
        moved, goal_us = one["read_bytes"] + one["written_bytes"], one["goal_us"]
        shares = (f"{one[f'{part}_percent']:.0f} %" for part in ("memory", "cache", "issue", "occupancy"))
        table.add_row(
            *(one["case"], one["dtype"], "–" if goal_us is None else f"{goal_us} µs", time_text(one["time_ns"])),
            *(f"{moved / 1e6:.0f} MB", f"{moved / one['time_ns'] / 1e3:.2f}", *shares, f"{one['registers']:.0f}"),
        )
    return _markdown(table)


def addends(run: Submission) -> str:
    """Cost of an addend at each site of ResNet-50 in a committed run, and savings of the pass at all 32."""
    from tools import addends as fused

    reached = _reached(run)
    found = fused.addends(run.results, reached)
    kinds = [(dtype, layout) for dtype in fused.DTYPES for layout in fused.LAYOUTS]
    cells = {(one.op, one.site, one.dtype, one.layout): one for one in found}
    table = Table("site")
    for dtype, layout in kinds:
        table.add_column(f"{dtype}, channels {layout}", justify="right")
    for op, site in dict.fromkeys((one.op, one.site) for one in found if (one.dtype, one.layout) in kinds):
        table.add_row(f"{op} · {site}", *(_share(cells.get((op, site, *kind))) for kind in kinds))
    sums = []
    for kind in kinds:
        saved = fused.saved_by_resnet50(found, *kind)
        most = fused.most_of_resnet50(kind[0], fused.BATCH, next(iter(reached.values())))
        sums.append("–" if saved is None else f"{saved / 1e3:.0f} of {most / 1e3:.0f} µs")
    table.add_row("saved at all 32 sites", *sums)
    return "\n\n".join((_origin(run), _markdown(table)))


def _share(one: Addend | None) -> str:
    if one is None:
        return "–"
    return f"{one.share:.0%}" if one.is_memory_bound else f"({one.share:.0%})"


def _read(path: Path) -> Submission:
    return read_submission(parse(path.read_bytes()))


def _reached(run: Submission) -> dict[str, Ceilings]:
    """Achieved peaks of each device of a run."""
    return {item.device: item for item in run.ceilings}


def _origin(run: Submission) -> str:
    """Hardware, libraries, commit and date of a run."""
    commit = str(run.environment.soft.get("commit", "unknown"))
    ended = " It was interrupted: some results are missing." if run.status == "interrupted" else ""
    return f"{_where(run.environment)}; commit {commit[:12]}, {run.started:%Y-%m-%d}.{ended}"


def _where(environment: Environment) -> str:
    models = [value for name, value in environment.hard.items() if name.endswith("model")]
    versions = [f"{name} {environment.soft[name]}" for name in LIBRARIES if name in environment.soft]
    return ", ".join((*models, *versions))


def _markdown(table: Table) -> str:
    """A Rich table in Markdown."""
    columns = [[_escaped(cell) for cell in column.cells] for column in table.columns]
    header = [_escaped(column.header) for column in table.columns]
    rule = ["--:" if column.justify == "right" else "---" for column in table.columns]
    lines = [header, rule, *zip(*columns, strict=True)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(cell: Any) -> str:
    return str(cell).replace("\\[", "[").replace("|", "\\|")


def main() -> None:
    """Rewrite docs/commands.md and docs/performance.md."""
    COMMANDS.write_text(manual(), encoding="utf-8")
    PERFORMANCE.write_text(insert(PERFORMANCE.read_text(encoding="utf-8"), performance()), encoding="utf-8")


if __name__ == "__main__":
    main()
