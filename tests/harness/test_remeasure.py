"""Cases in which it is open who is fastest are measured again, in other processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from opgauge.harness.result.result import Result, Status
from opgauge.harness.result.summary import rows
from opgauge.harness.run import remeasure as settle
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.remeasure import open_trials
from opgauge.harness.store import Store

from tests.commandline import run_here
from tests.harness.test_summary import a_result, on_a_gpu

ROOT = Path(__file__).parents[2]
NAMES = ("baseline", "optimized", "torch")


def opened(cold_ns: float, hot_ns: float | None = None, peer_hot_ns: float | None = None) -> list[str]:
    """Who is measured again where the peer takes 20 µs, or 9.9 where there are hot figures."""
    peer_ns = 20_000.0 if hot_ns is None else 9_900.0
    results = [
        on_a_gpu("baseline", 90_000.0, None),
        on_a_gpu("optimized", cold_ns, hot_ns),
        on_a_gpu("torch", peer_ns, peer_hot_ns),
    ]
    return [trial.implementation for trial in open_trials(results)]


@pytest.mark.parametrize(
    ("cold_ns", "is_open"), [(18_900.0, False), (19_100.0, True), (20_900.0, True), (21_100.0, False)]
)
def test_cases_near_what_is_asked_are_open(cold_ns: float, *, is_open: bool) -> None:
    """Within 5 % of the fastest peer; the baseline goes along, so that its ratio is of the same minutes."""
    assert opened(cold_ns) == (["baseline", "optimized", "torch"] if is_open else [])


@pytest.mark.parametrize(("hot_ns", "is_open"), [(880.0, False), (900.0, True), (1200.0, True), (1220.0, False)])
def test_hot_figures_are_open_for_longer(hot_ns: float, *, is_open: bool) -> None:
    """Kernels of a microsecond move by a tenth: within 15 % of what is asked."""
    assert bool(opened(9_000.0, hot_ns, 1000.0)) is is_open


@pytest.mark.parametrize(
    ("times_ns", "is_open"),
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
def test_what_processes_agree_on_is_settled(times_ns: tuple[float, ...], *, is_open: bool) -> None:
    """Where a peer takes 20 µs in each: further off than they from each other, and than 2 %."""
    results = [
        *blocks("optimized", *((time, None) for time in times_ns)),
        *blocks("torch", *((20_000.0, None) for _ in times_ns)),
    ]
    assert bool(open_trials(results)) is is_open


def test_what_cannot_be_settled_is_not_open() -> None:
    """Without a peer, or with one that is wrong."""
    assert len(open_trials([a_result("optimized", 100.0), a_result("torch", 100.0)])) == 2
    assert not open_trials([on_a_gpu("optimized", 20_000.0, None)])
    wrong = replace(on_a_gpu("torch", 20_000.0, None), status=Status.WRONG)
    assert not open_trials([on_a_gpu("optimized", 20_000.0, None), wrong])


def blocks(implementation: str, *pairs: tuple[float, float | None]) -> list[Result]:
    """A result of each process: cold and hot."""
    made = (on_a_gpu(implementation, cold_ns, hot_ns) for cold_ns, hot_ns in pairs)
    return [replace(result, block=block) for block, result in enumerate(made)]


def test_all_processes_count() -> None:
    """Times are medians over processes, ratios over those that have both; one that is wrong is what is seen."""
    results = [*blocks("optimized", (9.0, 1.0), (5.0, 2.0), (7.0, 9.0)), *blocks("torch", (8.0, 4.0), (6.0, 8.0))]
    (row,) = rows(results)
    assert (row.median_ns("optimized"), row.hot_ns("optimized")) == (7.0, 2.0)
    assert (row.median_ns("torch"), row.hot_ns("torch")) == (7.0, 6.0)
    assert row.against_peer == pytest.approx((9 / 8 + 5 / 6) / 2)
    assert row.hot_against_peer == pytest.approx((1 / 4 + 2 / 8) / 2)
    (row,) = rows([*results, replace(results[0], status=Status.WRONG, measurement=None, block=3)])
    assert (row.median_ns("optimized"), row.against_peer) == (None, None)
    assert row.results["optimized"].status is Status.WRONG


class Settled(NamedTuple):
    """Results of a run by implementation and block, how often processes changed, and what was told meanwhile."""

    results: list[tuple[str, int]]
    renewed: int
    told: str


def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nearness: float, *more: str) -> Settled:
    """A case by three implementations, open if within `nearness`."""
    monkeypatch.setattr(settle, "OPEN", {"cold": nearness})
    monkeypatch.setattr(settle, "NOISE", 1.0 + nearness)
    renewed = []
    plain = LocalExecutor.renew

    def noting(executor: LocalExecutor) -> None:
        renewed.append(executor)
        plain(executor)

    monkeypatch.setattr(LocalExecutor, "renew", noting)
    url = f"sqlite:///{tmp_path}/run.db"
    only = [text for name in NAMES for text in ("-i", name)]
    case = ("cases/dot.yaml", "--name", "vector-small", "--dtype", "float32")
    done = run_here("run", *case, *only, "--budget", "0.01", *more, cwd=ROOT, variables={"OPGAUGE_DB": url})
    assert done.returncode == 0, done.stderr
    with Store.open(url) as store:
        (run,) = store.runs()
        results = [(result.trial.implementation, result.block) for result in store.results(run.id)]
    return Settled(results, len(renewed), done.stderr)


def in_blocks(*numbers: int) -> list[tuple[str, int]]:
    """All implementations in each block."""
    return [(name, block) for block in numbers for name in NAMES]


def test_a_run_goes_on_in_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open stays in the run as further blocks, each of a process of its own."""
    assert settled(tmp_path, monkeypatch, 1e9, "--settle", "2")[:2] == (in_blocks(0, 1, 2), 2)


def test_a_run_ends_where_nothing_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no process is started for nothing."""
    assert settled(tmp_path, monkeypatch, -1.0, "--settle", "2")[:2] == (in_blocks(0), 0)


def test_a_resumed_run_keeps_what_it_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next process is a further block, as many as were asked for in all; what is open is compiled ahead too."""
    assert settled(tmp_path, monkeypatch, 1e9, "--settle", "1")[:2] == (in_blocks(0, 1), 1)
    resumed = settled(tmp_path, monkeypatch, 1e9, "--settle", "3", "--resume", "last", "--ahead", "1")
    assert resumed[:2] == (in_blocks(0, 1, 2, 3), 2)
    assert "3 of 3 are compiled and right" in resumed.told
