"""Measure a history: cases at the latest commits that changed `ops`, by this harness, an export file per commit.

`python -m tools.history --commits 24 --plant sign:0.3:8:5` writes `tests/data/history/`, which `make demo` imports. The
commits are checked out beside each other and measured in rounds, a worker process per commit and round, so that a
drift of the host is no trend of the code. A planted slowdown is written into the environment of its runs.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from opgauge.harness.caches import CACHED_BY_CONTENT
from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import Limits
from opgauge.harness.report.export import as_json, whole_run
from opgauge.harness.result.result import Environment, Result
from opgauge.harness.run.environment import capture
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.runner import plan, run
from opgauge.harness.run.tree import checkout
from opgauge.harness.run.worker_process import PRELOADED
from opgauge.harness.store.run_queries import RunInfo
from opgauge.harness.trust import planted
from opgauge.harness.worker.interleave import TURNS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "data" / "history"
"""Top of the tree, and the folder that the files are written to."""
IMPLEMENTATIONS = ("baseline", "optimized")
OPS = ("dot", "fill_any_like", "lerp", "mean", "normalization", "p_norm", "sign")
DEVICE = "cpu"
"""Kernels that are measured by default."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A slowdown of the optimized kernels of an op, from one place in the history on, for some commits."""

    op: str
    share: float
    start: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Planted:
        """Read OP:SHARE:START:LENGTH; START counts the commits from 0, the oldest."""
        op, share, start, length = text.split(":")
        return cls(op, float(share), int(start), int(length))

    def covers(self, place: int) -> bool:
        """Whether the commit at a place of the history is slowed down."""
        return self.start <= place < self.start + self.length

    def __str__(self) -> str:
        return f"{self.op} optimized, {100 * self.share:g} % slower"


@dataclass(slots=True)
class CommitRun:
    """A commit, its checked-out tree, and what was measured there. tree: what workers import `ops` from.

    slowed: shares by which kernels are slowed down.
    """

    commit: str
    environment: Environment
    tree: Path
    slowed: Mapping[planted.Slowed, float]
    started: datetime | None = None
    finished: datetime | None = None
    results: list[Result] = field(default_factory=list)


def main() -> None:
    """Check out, measure in rounds, write."""
    options = _parser().parse_args()
    cases = _chosen(options.op or OPS, options.tag)
    listed = commits(ROOT, options.commits)
    limits = Limits(budget_s=options.budget, turns=TURNS)
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        found = list(_checked_out(stack, listed, cases, options.plant))
        rng = random.Random()  # noqa: S311  no secret
        for block in range(options.rounds):
            # in random order: with any other, neighbours in the history share the drifts of the host
            for one in rng.sample(found, len(found)):
                print(f"round {block + 1}: {one.commit[:10]}", file=sys.stderr)  # noqa: T201
                _measure(one, cases, limits, block)
        for place, one in enumerate(found):
            file = options.out / f"{place:02}-{one.commit[:10]}.json"
            file.write_text(as_json(whole_run(_run(one), one.results, {})), encoding="utf-8")


def commits(tree: Path, most: int) -> list[str]:
    """The latest commits of the first-parent history that changed `ops`, oldest first."""
    command = ["git", "-C", str(tree), "log", "--first-parent", "--format=%H", f"-n{most}", "--", "ops"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[::-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.history", description=__doc__)
    parser.add_argument("--commits", type=int, default=24, help="commits to measure")
    parser.add_argument("--rounds", type=int, default=3, help="worker processes per commit")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of sampling per trial")
    parser.add_argument("--op", action="append", help="measure this op; repeatable")
    parser.add_argument("--tag", default="seed", help="measure cases with this tag")
    parser.add_argument(
        "--plant", action="append", default=[], type=Planted.parse, help="slow an op down: OP:SHARE:START:LENGTH"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the export files")
    return parser


def _chosen(ops: Sequence[str], tag: str) -> list[Case]:
    return [case for case in load_cases([ROOT / "cases"]) if case.op in ops and tag in case.tags]


def _checked_out(
    stack: ExitStack, listed: Sequence[str], cases: Sequence[Case], slowdowns: Sequence[Planted]
) -> Iterator[CommitRun]:
    """Each commit with its tree, and the shares by which its kernels are slowed down."""
    for place, commit in enumerate(listed):
        tree = stack.enter_context(checkout(ROOT, commit))
        here = capture([DEVICE], cases=cases, tree=tree)
        soft = {**here.soft, "project": "opgauge", "branch": "main"}
        here_planted = [one for one in slowdowns if one.covers(place)]
        if here_planted:
            soft["planted"] = "; ".join(map(str, here_planted))
        slowed = {(one.op, "optimized", DEVICE): one.share for one in here_planted}
        yield CommitRun(commit, replace(here, soft=soft), tree, slowed)


def _measure(one: CommitRun, cases: Sequence[Case], limits: Limits, block: int) -> None:
    """One round of a commit, in a process of its own."""
    one.started = one.started or datetime.now(UTC)
    trials = plan(cases, implementations=IMPLEMENTATIONS, devices=[DEVICE])
    preload = (*PRELOADED, planted.__name__)
    environment = {**CACHED_BY_CONTENT, **planted.environment(one.slowed)}
    with LocalExecutor(limits=limits, ops_tree=one.tree, preload=preload, environment=environment) as executor:
        one.results += run(trials, executor, block=block)
    one.finished = datetime.now(UTC)


def _run(one: CommitRun) -> RunInfo:
    started = one.started or datetime.now(UTC)
    command = "python -m tools.history"
    run_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{one.commit} {started.isoformat()}"))
    return RunInfo(0, run_id, started, one.finished, "finished", one.commit, command, one.environment)


if __name__ == "__main__":
    main()
