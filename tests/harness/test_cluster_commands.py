"""Gate, A/A test, exploration and tuning over a cluster of processes that measure the CPU."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from time import sleep
from typing import TYPE_CHECKING

import pytest

from opgauge.harness.cli.options import load
from opgauge.harness.cluster import pool as cluster_pool
from opgauge.harness.cluster.local import local_cluster, member_options
from opgauge.harness.cluster.pool import ClusterPool
from opgauge.harness.cluster.spread import Runs, measure_by
from opgauge.harness.cluster.tasks import Outcome, Task, run_tasks
from opgauge.harness.cluster.trees import pack_tree, tree_digest, unpack_tree
from opgauge.harness.cluster.tuning import ClusterTuningBench, ExecutorOptions
from opgauge.harness.errors import TreeError, WorkerError
from opgauge.harness.gate.clock import Clock
from opgauge.harness.gate.gate import ExitCode, Schedule
from opgauge.harness.gate.pairs import Batch, PairPlan
from opgauge.harness.gate.record import BASE, HEAD, Job, JobRecord
from opgauge.harness.gate.run import Conditions, gate
from opgauge.harness.gate.selection import Selection
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.measure import Limits
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Environment, Status, Trial
from opgauge.harness.run.compiling import ONCE
from opgauge.harness.run.runner import plan
from opgauge.harness.run.tree import Tree
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store
from opgauge.harness.tune.rounds import RoundOrder
from tests.tinytree import TinyTree

if TYPE_CHECKING:
    from distributed import Client

pytest.importorskip("distributed")

SMOKE = [case for case in load(None, ops=["sign"]) if case.op == "sign" and "smoke" in case.tags]
TREE = Tree(ROOT, "", "this tree")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two members that time the CPU."""
    with local_cluster(member_options([], cpu_slots=2, references=0)) as found:
        yield found


def process_of(_: object = None) -> int:
    """The process that runs a task."""
    return os.getpid()


def test_the_gate_measures_each_pair_on_one_member(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal trees do not fail; both blocks of the pair are there for every case; no process starts on this host."""
    made = TinyTree(tmp_path / "repository")
    made.set_ops("tiny", {"steady": "sane", "untouched": "sane"})
    tree = Tree(made.path, "", "this tree")
    selection = Selection(tags=("gate",), devices=("cpu",))
    conditions = Conditions(schedule=Schedule(start=1, most=1), block_s=0.01, profile=False)
    with ClusterPool(client, "cpu", {BASE: tree, HEAD: tree}) as pool:
        assert pool.devices == 2
        monkeypatch.setattr(pool, "executor", None)
        run = gate(pool, selection, conditions)
    assert run.outcome.code in {ExitCode.PASSED, ExitCode.UNDECIDED}
    assert len(run.records) == 2
    for record in run.records.values():
        assert sorted(record.outcomes[BASE]) == sorted(record.outcomes[HEAD]) == [0]
        assert {one.status for blocks in record.outcomes.values() for one in blocks.values()} == {Status.OK}
    assert run.clock.blocks >= 2


def test_a_lost_batch_fails_with_its_reason_and_others_keep_their_pairs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cluster loses twice is an error of both sides of the batch that was lost, and of no other."""
    batches = [Batch([JobRecord(Job(Subject("sign", name, name, "optimized", "cpu"), {}))], 2) for name in "ab"]

    def lose_first(_: object, tasks: list[Task], *__: object, **___: object) -> Iterator[Outcome]:
        first, second = tasks
        yield Outcome(first, lost="gone")
        done = second.arguments[1]
        done.records[0].is_crowded = True
        yield Outcome(second, (done.records, Clock(blocks=4, blocks_s=2.0)))

    with ClusterPool(client, "cpu", {BASE: TREE, HEAD: TREE}) as pool:
        monkeypatch.setattr(cluster_pool, "run_tasks", lose_first)
        pool.measure_batches(batches, PairPlan(Schedule()), lambda _: None)
        assert (pool.clock.blocks, pool.clock.blocks_s) == (4, 1.0)
    (lost,), (kept,) = (batch.records for batch in batches)
    assert {one.reason for blocks in lost.outcomes.values() for one in blocks.values()} == {"gone"}
    assert lost.is_final
    assert kept.is_crowded
    assert not kept.attempts


def test_unlike_members_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts over unlike devices would compare hardware: both hosts and the difference are named."""
    answers = {
        address: {"host": host, "environment": to_json(Environment({"cpu.model": model}, {}))}
        for address, host, model in (("a", "one", "Fast"), ("b", "two", "Slow"))
    }
    monkeypatch.setattr(client, "run", lambda *_, **__: answers)
    with pytest.raises(WorkerError, match=r"one and two are unlike.*cpu\.model: Fast and Slow"):
        ClusterPool(client, "cpu", {BASE: TREE, HEAD: TREE})


def test_an_exploration_stores_each_result_once(client: Client, tmp_path: Path) -> None:
    """Trials that are requested twice are measured once, and come back in the order of the request."""
    trials = plan(SMOKE[:2], implementations=["baseline", "optimized"])
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        runs = Runs(store, "test")
        measure = measure_by(client, runs, (), ONCE, timeout_s=60, tell=lambda _: None)
        first, again = measure(trials), measure(trials[::-1])
        assert [result.trial for result in first] == trials
        assert again == first[::-1]
        (run,) = runs.ids
        assert len(store.results(run)) == len(trials)


MEASURE = """
from opgauge.harness.cluster import local
local.visible_devices = lambda text: [0]
options = local.member_options
local.member_options = lambda devices: options([], cpu_slots=1, references=0)
from opgauge.harness.cli import main
main()
"""
"""Runs a command whose `--gpus` is one process that times the CPU."""


def test_ctrl_c_ends_a_spread_run_with_its_results_and_without_tracebacks(tmp_path: Path) -> None:
    """A terminal sends it to all processes; members leave it to the one that started them."""
    database = f"sqlite:///{tmp_path}/runs.db"
    arguments = ["run", "--gpus", "all", "--device", "cpu", "--tag", "smoke", "--no-ceilings", "--db", database]
    command = [sys.executable, "-c", MEASURE, *arguments]
    with Popen(command, start_new_session=True, stdout=PIPE, stderr=STDOUT, text=True) as process:
        try:
            with Store.open(database) as store:
                while process.poll() is None and not (store.runs(1) and store.results(store.runs(1)[0].id)):
                    sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + signal.SIGINT, output
    assert "Traceback" not in output
    assert f"in {tmp_path}/runs.db" in output
    with Store.open(database) as store:
        assert [run.status for run in store.runs(2)] == ["interrupted"]


def test_rounds_of_the_tuner_run_on_members_whole(client: Client) -> None:
    """Every candidate of a round has a time for each case; both rounds come back in order."""
    options = ExecutorOptions(Limits(budget_s=0.001, min_samples=1, max_samples=2, warmup_s=0.0), 60.0)
    bench = ClusterTuningBench(client, "cpu", options)
    trial = to_json(Trial(SMOKE[0], "optimized", "cpu", "cpu"))
    assert bench.devices == 2
    assert bench.model("cpu")
    assert "names" in bench.bind([trial])[0]
    orders = [RoundOrder(number, "x", values, 1, (trial,), {}, {}) for number, values in enumerate([(1, 2), (2, 1)])]
    for done in bench.measure(orders):
        assert sorted(done.times_ns) == [(1, SMOKE[0].id), (2, SMOKE[0].id)]


def test_tasks_run_on_all_devices_and_one_at_a_time_on_each(client: Client) -> None:
    """Eight tasks use both members."""
    tasks = [Task("process", "cpu", process_of, (number,)) for number in range(8)]
    assert len({outcome.value for outcome in run_tasks(client, tasks)}) == 2


def test_a_tree_is_copied_to_a_host_that_lacks_it(tmp_path: Path) -> None:
    """The copy has the digest of the original; another tree under the path, or no permission, is refused."""
    tree, copy = tmp_path / "tree", tmp_path / "a" / "copy"
    (tree / "ops").mkdir(parents=True)
    (tree / "cases").mkdir()
    for name, text in (("ops/__init__.py", "x = 1\n"), ("cases/a.yaml", "op: a\n"), ("notes.txt", "ignored")):
        (tree / name).write_text(text, encoding="utf-8")
    unpack_tree(str(copy), tree_digest(tree), pack_tree(tree))
    assert tree_digest(copy) == tree_digest(tree)
    assert not (copy / "notes.txt").exists()
    unpack_tree(str(copy), tree_digest(tree), b"")
    (tree / "ops" / "__init__.py").write_text("x = 2\n", encoding="utf-8")
    with pytest.raises(TreeError, match="cannot create"):
        unpack_tree(str(copy), tree_digest(tree), pack_tree(tree))
