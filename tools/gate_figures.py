"""Error rates of the gate on this machine, alone and beside a busy process: `python -m tools.gate_figures`.

Each round runs `opgauge aa` and `opgauge inject` once in each setting, on the gate's default selection, and keeps what
they print in a folder: ended at any time, it goes on there. The table adds up all rounds in the folder. Run it on a
machine that does nothing else; a round takes about 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.harness.trust.share import Share

SPIN = "while True: pass"
"""Program of the busy process."""
SLOWDOWNS = (0.0, 0.03, 0.05, 0.1)
"""Planted shares; 0 compares equal code."""


class Setting(NamedTuple):
    """Conditions of one gate run. slowdown: planted share. is_busy: whether another process uses a CPU."""

    slowdown: float
    is_busy: bool

    def __str__(self) -> str:
        code = f"{100 * self.slowdown:g} % slower" if self.slowdown else "equal code"
        return f"{code}, {'beside a busy process' if self.is_busy else 'alone'}"


def main() -> None:
    """Run what is missing in the folder, and print the table of all that is there."""
    parser = argparse.ArgumentParser(prog="python -m tools.gate_figures", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slowdown", type=float, action="append", help="planted share, 0 for none; repeatable")
    parser.add_argument("--alone", action="store_true", help="leave out the settings with a busy process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("build/gate-figures"))
    parser.add_argument("arguments", nargs="*", help="further arguments of both commands, after --")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    settings = [
        Setting(slowdown, is_busy)
        for is_busy in (False, True)[: 1 if given.alone else 2]
        for slowdown in given.slowdown or SLOWDOWNS
    ]
    for number in range(given.rounds):
        for setting in settings:
            file = given.folder / f"{setting.slowdown:g}-{'busy' if setting.is_busy else 'alone'}-{number}.json"
            if not file.exists():
                _run(setting, ["--device", given.device, *given.arguments], file)
    print("\n".join(table(_stored(given.folder))))  # noqa: T201  a command's output


def _run(setting: Setting, arguments: Iterable[str], file: Path) -> None:
    command = ["inject", "--slowdown", f"{setting.slowdown:g}"] if setting.slowdown else ["aa", "--runs", "1"]
    print(f"{setting}: {file}", file=sys.stderr)  # noqa: T201
    with _neighbour(is_busy=setting.is_busy):
        done = subprocess.run(
            [sys.executable, "-m", "opgauge", *command, "--json", *arguments], stdout=subprocess.PIPE, check=True
        )
    file.write_bytes(done.stdout)


@contextmanager
def _neighbour(*, is_busy: bool) -> Iterator[None]:
    """Run a process that uses one CPU."""
    process = subprocess.Popen([sys.executable, "-c", SPIN]) if is_busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _stored(folder: Path) -> Mapping[Setting, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for file in sorted(folder.glob("*-*-*.json")):
        slowdown, neighbour, _ = file.stem.split("-")
        found[Setting(float(slowdown), neighbour == "busy")].append(json.loads(file.read_bytes()))
    return dict(sorted(found.items(), key=lambda item: (item[0].is_busy, item[0].slowdown)))


def table(found: Mapping[Setting, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Lines of a table in Markdown: verdicts of all runs in each setting, with their 95 % bounds, and seconds."""
    lines = ["| setting | decisions | slower | faster | undecided | wall time |", "|---|--:|--:|--:|--:|--:|"]
    for setting, runs in found.items():
        total = {name: sum(run[name] for run in runs) for name in ("decisions", "slower", "faster", "undecided")}
        shares = [str(Share(total[name], total["decisions"])) for name in ("slower", "faster", "undecided")]
        seconds = sum(run["seconds"] for run in runs)
        spent = f"{seconds / len(runs):.0f} s a run, {seconds / total['decisions']:.1f} s a case"
        lines.append(f"| {' | '.join((str(setting), str(total['decisions']), *shares, spent))} |")
    return lines


if __name__ == "__main__":
    main()
