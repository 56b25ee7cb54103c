"""Cases whose ranking is within noise are measured again, in other processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from opgauge.harness.result import summary
from opgauge.harness.result.result import Result, Status
from opgauge.harness.result.summary import rows
from opgauge.harness.run import remeasure
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.remeasure import undecided_trials
from opgauge.harness.store import Store
from tests.commandline import run_here
from tests.harness.test_summary import a_result, on_a_gpu

ROOT = Path(__file__).parents[2]
NAMES = ("baseline", "optimized", "subtract")
"""The last stands for a peer, none of which starts as quickly as what imports no torch."""


def remeasured(cold_ns: float, hot_ns: float | None = None, peer_hot_ns: float | None = None) -> list[str]:
    """Implementations that are measured again if the peer takes 20 µs, or 9.9 if there are hot figures."""
    peer_ns = 20_000.0 if hot_ns is None else 9_900.0
    results = [
        on_a_gpu("baseline", 90_000.0, None),
        on_a_gpu("optimized", cold_ns, hot_ns),
        on_a_gpu("torch", peer_ns, peer_hot_ns),
    ]
    return [trial.implementation for trial in undecided_trials(results)]


@pytest.mark.parametrize(
    ("cold_ns", "is_undecided"), [(18_900.0, False), (19_100.0, True), (20_900.0, True), (21_100.0, False)]
)
def test_cases_near_the_limit_are_undecided(cold_ns: float, *, is_undecided: bool) -> None:
    """Within 5 % of the fastest peer; the baseline is measured again too, so that ratios are of the same minutes."""
    assert remeasured(cold_ns) == (["baseline", "optimized", "torch"] if is_undecided else [])


@pytest.mark.parametrize(("hot_ns", "is_undecided"), [(880.0, False), (900.0, True), (1200.0, True), (1220.0, False)])
def test_hot_figures_are_undecided_in_a_wider_range(hot_ns: float, *, is_undecided: bool) -> None:
    """Kernels of a microsecond move by a tenth: within 15 % of the limit."""
    assert bool(remeasured(9_000.0, hot_ns, 1000.0)) is is_undecided


@pytest.mark.parametrize(
    ("times_ns", "is_undecided"),
    [
        ((19_100.0, 19_200.0), False),
        ((19_100.0, 19_700.0), True),
        ((19_100.0, 19_700.0, 18_500.0), True),
        ((19_100.0, 19_100.0, 19_100.0), False),
        ((19_700.0, 19_700.0, 19_700.0), True),
        ((20_300.0, 20_300.0), True),
        ((20_500.0, 20_600.0), False),
    ],
)
def test_processes_that_agree_decide(times_ns: tuple[float, ...], *, is_undecided: bool) -> None:
    """If a peer takes 20 µs in each: ratios further from the limit than from each other, and than 2 %."""
    results = [
        *blocks("optimized", *((time, None) for time in times_ns)),
        *blocks("torch", *((20_000.0, None) for _ in times_ns)),
    ]
    assert bool(undecided_trials(results)) is is_undecided


def test_without_a_peer_nothing_is_undecided() -> None:
    """Without a peer, or with one that is wrong."""
    assert len(undecided_trials([a_result("optimized", 100.0), a_result("torch", 100.0)])) == 2
    assert not undecided_trials([on_a_gpu("optimized", 20_000.0, None)])
    wrong = replace(on_a_gpu("torch", 20_000.0, None), status=Status.WRONG)
    assert not undecided_trials([on_a_gpu("optimized", 20_000.0, None), wrong])


def blocks(implementation: str, *pairs: tuple[float, float | None]) -> list[Result]:
    """A result of each process: cold and hot."""
    made = (on_a_gpu(implementation, cold_ns, hot_ns) for cold_ns, hot_ns in pairs)
    return [replace(result, block=block) for block, result in enumerate(made)]


def test_all_processes_count() -> None:
    """Times are medians over processes, ratios over those that have both; a wrong one decides the status."""
    results = [*blocks("optimized", (9.0, 1.0), (5.0, 2.0), (7.0, 9.0)), *blocks("torch", (8.0, 4.0), (6.0, 8.0))]
    (row,) = rows(results)
    assert (row.median_ns("optimized"), row.hot_ns("optimized")) == (7.0, 2.0)
    assert (row.median_ns("torch"), row.hot_ns("torch")) == (7.0, 6.0)
    assert row.against_peer == pytest.approx((9 / 8 + 5 / 6) / 2)
    assert row.hot_against_peer == pytest.approx((1 / 4 + 2 / 8) / 2)
    (row,) = rows([*results, replace(results[0], status=Status.WRONG, measurement=None, block=3)])
    assert (row.median_ns("optimized"), row.against_peer) == (None, None)
    assert row.results["optimized"].status is Status.WRONG


class RunFacts(NamedTuple):
    """Results of a run by implementation and block, number of process changes, and notes on stderr."""

    results: list[tuple[str, int]]
    renewed: int
    told: str


def run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nearness: float, *more: str) -> RunFacts:
    """A case by three implementations, open if within `nearness`."""
    monkeypatch.setattr(summary, "PEERS", ("subtract",))
    monkeypatch.setattr(remeasure, "UNDECIDED", {"cold": nearness})
    monkeypatch.setattr(remeasure, "NOISE", 1.0 + nearness)
    renewed = []
    plain = LocalExecutor.renew

    def noting(executor: LocalExecutor) -> None:
        renewed.append(executor)
        plain(executor)

    monkeypatch.setattr(LocalExecutor, "renew", noting)
    url = f"sqlite:///{tmp_path}/run.db"
    only = [text for name in NAMES for text in ("-i", name)]
    case = ("cases/lerp.yaml", "--case", "lerp_grad/weights")
    done = run_here("run", *case, *only, "--budget", "0.01", *more, cwd=ROOT, variables={"OPGAUGE_DB": url})
    assert done.returncode == 0, done.stderr
    with Store.open(url) as store:
        (run,) = store.runs()
        results = [(result.trial.implementation, result.block) for result in store.results(run.id)]
    return RunFacts(results, len(renewed), done.stderr)


def in_blocks(*numbers: int) -> list[tuple[str, int]]:
    """All implementations in each block."""
    return [(name, block) for block in numbers for name in NAMES]


def test_a_run_ends_where_nothing_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further process starts."""
    assert run_once(tmp_path, monkeypatch, -1.0, "--remeasure", "2")[:2] == (in_blocks(0), 0)


def test_a_resumed_run_keeps_what_it_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undecided cases get further blocks in the same run, each from a process of its own, up to the requested number.

    Of a resumed run undecided trials are compiled first too.
    """
    assert run_once(tmp_path, monkeypatch, 1e9, "--remeasure", "1")[:2] == (in_blocks(0, 1), 1)
    resumed = run_once(tmp_path, monkeypatch, 1e9, "--remeasure", "3", "--resume", "last", "--ahead", "1")
    assert resumed[:2] == (in_blocks(0, 1, 2, 3), 2)
    assert "3 of 3 trials compiled and valid" in resumed.told
