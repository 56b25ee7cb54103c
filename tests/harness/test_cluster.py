"""Runs over a cluster of processes: every trial has one result, whatever is killed meanwhile."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.cli.options import load
from opgauge.harness.cluster import member
from opgauge.harness.cluster import tasks as sending
from opgauge.harness.cluster.dispatch import Measured, dispatch, tasks_of
from opgauge.harness.cluster.local import local_cluster, member_options, remote_cluster, visible_devices
from opgauge.harness.cluster.simulate import Load, Shape, simulate
from opgauge.harness.cluster.spread import Runs, ending, run_spread
from opgauge.harness.cluster.status import ClusterState, state_of
from opgauge.harness.cluster.tasks import SchedulerLostError, Task, run_tasks
from opgauge.harness.errors import SettingsError, WorkerError
from opgauge.harness.result.result import Environment, Status, Trial
from opgauge.harness.run.compiling import ONCE
from opgauge.harness.run.runner import plan
from opgauge.harness.settings import IMPORT_PATH, THREAD_VARIABLES
from opgauge.harness.store import Store
from tests.draws import rounds, seed
from tests.faulty.ending import end_process

if TYPE_CHECKING:
    from distributed import Client

pytest.importorskip("distributed")

SMOKE = [case for case in load(None, ops=["sign"]) if case.op == "sign" and "smoke" in case.tags]
MEMBER_KILLS, SCHEDULER_KILLS = rounds(45), rounds(5)
MOST_REPORTED = 2 + MEMBER_KILLS // 10
"""Rounds of kills, and most trials that may be reported as lost twice in all of them."""
THREAD_COUNTS = {name: os.getenv(name) for name in THREAD_VARIABLES}
"""Thread counts that the environment sets before any cluster is started."""


def trials_of(cases: Sequence[Case]) -> list[Trial]:
    """Baseline and optimized of each on the CPU."""
    return plan(cases, implementations=["baseline", "optimized"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    """Two members that time the CPU, so that one can be killed, and one that computes references."""
    with local_cluster(member_options([], cpu_slots=2, references=1)) as found:
        yield found


@pytest.fixture
def client(cluster: Client) -> Client:
    """The cluster with all of its members: those that a test killed are started again."""
    cluster.wait_for_workers(3, timeout=120)
    return cluster


def counted(results: Sequence[Measured]) -> Counter[tuple[str, str]]:
    """How many results each trial has."""
    return Counter((one.result.trial.case.id, one.result.trial.implementation) for one in results)


def test_each_trial_has_one_result_with_the_environment_of_its_member(client: Client) -> None:
    """Results over a cluster are those of a run here: all of them, once, right, with where they were measured."""
    trials = trials_of(SMOKE)
    found = list(dispatch(client, trials, ONCE))
    assert counted(found) == Counter((trial.case.id, trial.implementation) for trial in trials)
    assert {one.result.status for one in found} == {Status.OK}
    assert all(one.environment.hard for one in found)


def test_a_cluster_sets_no_thread_counts(client: Client) -> None:
    """Members use as many threads as a run here, and so does what this process measures afterwards."""
    for name, count in THREAD_COUNTS.items():
        assert os.getenv(name) == count
        assert set(client.run(os.getenv, name).values()) == {count}


def test_implementations_of_a_case_stay_together() -> None:
    """A task holds all trials of a case on a device; the largest come first."""
    tasks = tasks_of(trials_of(SMOKE), ONCE, timeout_s=60)
    assert len(tasks) == len(SMOKE)
    assert all(
        len({trial["case"]["id"] for trial in task.arguments[0]}) == 1 and len(task.arguments[0]) == 2 for task in tasks
    )
    assert [task.weight for task in tasks] == sorted((task.weight for task in tasks), reverse=True)


@pytest.mark.timeout(1500)
def test_killed_members_lose_nothing(client: Client) -> None:
    """In each round any member is killed with -9 at a random moment: still each trial has one result, a right one.

    A busy host may lose a member that starts again, too: a trial that was lost twice is reported, and run again.
    """
    chosen = random.Random(f"{seed()} members")  # noqa: S311  moments and victims
    reported = 0
    for number in range(MEMBER_KILLS):
        trials = trials_of(chosen.sample(SMOKE, 3))
        victim = chosen.choice(_processes(client))
        killer = Thread(target=_kill_after, args=(victim, chosen.uniform(0, 0.5)))
        killer.start()
        found = list(dispatch(client, trials, ONCE))
        killer.join()
        assert counted(found) == Counter((trial.case.id, trial.implementation) for trial in trials), number
        lost = [one.result for one in found if one.result.status is not Status.OK]
        assert all("its worker was lost" in one.reason for one in lost), lost
        reported += len(lost)
        if lost:
            again = list(dispatch(client, [one.trial for one in lost], ONCE))
            assert {one.result.status for one in again} == {Status.OK}, [one.result.reason for one in again]
    assert reported <= MOST_REPORTED


@pytest.mark.timeout(900)
def test_a_killed_scheduler_leaves_finished_results_and_the_rest_is_measured_later(
    client: Client, tmp_path: Path
) -> None:
    """The scheduler is killed at random moments; what was stored is whole each time, a second part does the rest."""
    chosen = random.Random(f"{seed()} scheduler")  # noqa: S311  moments
    trials = trials_of(SMOKE)
    for number in range(SCHEDULER_KILLS):
        with Store.open(f"sqlite:///{tmp_path}/{number}.db") as store:
            runs = Runs(store, "test")
            with _scheduler() as (process, address), remote_cluster(address, timeout_s=5) as remote:
                remote.wait_for_workers(1, timeout=240)
                killer = Thread(target=_kill_after, args=(process.pid, chosen.uniform(0.1, 3)))
                killer.start()
                with suppress(SchedulerLostError):
                    _spread(remote, trials, runs, store)
                killer.join()
            finished = {done for run in runs.ids for done in store.finished_trials(run)}
            rest = [trial for trial in trials if (trial.case.id, trial.implementation, trial.device) not in finished]
            assert len(finished) + len(rest) == len(trials)
            _spread(client, rest, runs, store)
            stored = [result for run in runs.ids for result in store.results(run)]
            assert len(stored) == len(trials), number
            assert {result.status for result in stored} == {Status.OK}
            assert {store.find_run(run).status for run in runs.ids} == {"finished"}


def test_a_resumed_run_goes_into_the_run_that_was_begun(client: Client, tmp_path: Path) -> None:
    """Results of the same kind of device join the run; those of another kind begin one."""
    trials = trials_of(SMOKE[:4])
    with Store.open(f"sqlite:///{tmp_path}/a.db") as store:
        runs = Runs(store, "first")
        _spread(client, trials[:4], runs, store)
        (run,) = runs.ids
        resumed = Runs(store, "again", (run, store.find_run(run).environment))
        _spread(client, trials[4:], resumed, store)
        assert resumed.ids == [run]
        assert len(store.results(run)) == len(trials)
        other = Environment({"cpu.model": "another"}, {})
        assert resumed.of(other) not in {"", run}


def test_other_code_is_refused_with_both_versions_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose code has another digest measures nothing."""
    monkeypatch.setattr(member, "code_digest", lambda: "0123456789abcdef")
    with pytest.raises(member.VersionMismatchError, match="0123456789abcdef"):
        list(dispatch(client, trials_of(SMOKE[:1]), ONCE))


def test_a_trial_that_kills_its_members_is_reported_and_others_finish(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case that ends every process that takes it becomes an error of its trials; all others have their results."""
    poison = replace(SMOKE[0], name="poison")
    trials = trials_of([poison, *SMOKE[1:4]])
    tasks = [
        replace(task, function=end_process) if task.label == f"{poison.op}/{poison.name}" else task
        for task in tasks_of(trials, ONCE, timeout_s=60)
    ]
    monkeypatch.setattr("opgauge.harness.cluster.dispatch.tasks_of", lambda *_, **__: tasks)
    found = list(dispatch(client, trials, ONCE, references=False))
    assert counted(found) == Counter((trial.case.id, trial.implementation) for trial in trials)
    for one in found:
        poisoned = one.result.trial.case.id == poison.id
        assert one.result.status is (Status.ERROR if poisoned else Status.OK), one.result.reason
        assert ("its worker was lost" in one.result.reason) == poisoned


@pytest.mark.parametrize(("beside", "sent"), [([], ["lost"]), (["other"], [])])
def test_what_was_lost_has_its_host_to_itself(
    beside: Sequence[str], sent: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that ends the members of a host is sent twice: no other task is lost beside it both times."""
    made = sending._Dispatcher(SimpleNamespace(), print, references=False)
    monkeypatch.setattr(made, "_submit", lambda task: task.label)
    monkeypatch.setattr(sending, "_list_hosts", lambda _: {"h": sending._Host({"cpu": 4})})
    made.running |= {label: Task(label, "cpu", end_process, tries=1, host="h") for label in beside}
    waiting = deque([Task("lost", "cpu", end_process, tries=1), Task("fresh", "cpu", end_process)])
    for _ in range(2):
        made._send(waiting, made._hosts())
        assert [*made.running] == [*beside, *sent]


def test_a_member_that_ends_unlisted_is_no_fault(client: Client) -> None:
    """The cluster hears of its end, but never heard of its start."""
    client.cluster._update_worker_status("remove", "tcp://127.0.0.1:1")


def test_without_a_member_for_a_device_it_is_said(client: Client) -> None:
    """No GPU member: the run ends at once, naming what to start."""
    trials = plan(SMOKE[:1], implementations=["optimized"], devices=["cuda:0"])
    with pytest.raises(WorkerError, match="opgauge cluster worker"):
        list(dispatch(client, trials, ONCE))


def test_status_lists_members_with_what_they_offer(client: Client) -> None:
    """Three members of one host: two for CPU timing, one for references; no command waits for them."""
    found = state_of(client)
    assert Counter(one.offers for one in found.members) == {"1 cpu": 2, "1 reference": 1}
    assert (found.devices, found.queues) == (2, ())


def test_status_shows_what_runs_and_what_waits(client: Client) -> None:
    """While two of four tasks run, two wait; afterwards the command is gone."""
    tasks = [Task(f"nap/{number}", "cpu", time.sleep, (2,)) for number in range(4)]
    outcomes = run_tasks(client, tasks)
    seen: list[ClusterState] = []
    ended = Event()

    def watch() -> None:
        while not ended.wait(0.1):
            seen.append(state_of(client))
            if seen[-1].queues and sum(len(one.running) for one in seen[-1].members) == 2:
                return

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    assert len(list(outcomes)) == len(tasks)
    ended.set()
    watcher.join()
    (queue,) = seen[-1].queues
    assert (queue.waiting, queue.running, queue.finished) == (2, 2, 0)
    assert {label for one in seen[-1].members for label in one.running} == {"nap/0", "nap/1"}
    assert not state_of(client).queues


def test_what_was_collected_is_not_computed_again(client: Client) -> None:
    """Whatever still holds a future: a value that this process has is no longer wanted of the cluster."""
    gc.collect()
    gc.disable()
    try:
        tasks = [Task(f"nap/{number}", "cpu", time.sleep, (0.1,)) for number in range(4)]
        assert len(list(run_tasks(client, tasks))) == len(tasks)
        assert not any(str(key).startswith("nap") for key in client.futures)
    finally:
        gc.enable()


def test_gpus_that_are_not_there_are_refused() -> None:
    """Device numbers are checked before anything starts."""
    with pytest.raises(SettingsError, match="this host has"):
        visible_devices("97")
    with pytest.raises(SettingsError, match="separated by commas"):
        visible_devices("first")


def test_the_simulation_keeps_to_the_bound() -> None:
    """On one device the makespan is the sum; on 64 within 10 % of the bound, also where references are slow."""
    chosen = random.Random(0)  # noqa: S311  durations
    loads = [Load(chosen.lognormvariate(0.5, 0.8)) for _ in range(20_000)]
    one = simulate(loads[:100], Shape(hosts=1, devices=1, latency_s=0.0))
    assert one.makespan_s == pytest.approx(sum(load.device_s for load in loads[:100]))
    many = simulate(loads, Shape(hosts=8, devices=8))
    assert 1.0 <= many.makespan_s / many.bound_s <= 1.10
    slow = [Load(load.device_s, 10 * load.device_s) for load in loads]
    starved = simulate(slow, Shape(hosts=8, devices=8, reference_slots=4))
    assert starved.bound_s == pytest.approx(11 * sum(load.device_s for load in slow) / (64 + 32))
    assert 1.0 <= starved.makespan_s / starved.bound_s <= 1.10
    assert starved.busy < 0.2


def test_a_simulated_device_takes_what_is_ready_or_light() -> None:
    """The heavy case is measured when its reference is there, a light one with its own reference meanwhile."""
    heavy, light = Load(device_s=1.0, reference_s=10.0), Load(device_s=2.0, reference_s=1.0)
    shape = Shape(hosts=1, devices=1, reference_slots=1, latency_s=0.0)
    assert simulate([light, heavy], shape).makespan_s == 11.0
    assert simulate([heavy], shape).makespan_s == 11.0
    assert simulate([light, light, heavy], shape).makespan_s == 13.0


def test_a_simulated_device_is_given_light_cases_while_heavy_references_are_computed() -> None:
    """One of four processes computes those of light cases: otherwise all wait for long ones at the beginning."""
    chosen = random.Random(0)  # noqa: S311  durations
    drawn = [(chosen.lognormvariate(-0.5, 0.5), chosen.lognormvariate(-0.5, 2)) for _ in range(6000)]
    loads = [Load(device_s, min(reference_s, 60)) for device_s, reference_s in drawn]
    found = simulate(loads, Shape(hosts=8, devices=8, reference_slots=128))
    assert 1.0 <= found.makespan_s / found.bound_s <= 1.10


def _spread(client: Client, trials: Sequence[Trial], runs: Runs, store: Store) -> None:
    with ending(store, runs):
        run_spread(
            client, trials, runs, ONCE, timeout_s=60, ceilings=False, advance=lambda _: None, tell=lambda _: None
        )


def _processes(client: Client) -> list[int]:
    """Process ids of the members that are there; those that start again meanwhile are waited for."""
    while not (found := [one for one in client.run(os.getpid, on_error="ignore").values() if isinstance(one, int)]):
        time.sleep(0.1)
    return found


def _kill_after(process: int, seconds: float) -> None:
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def _scheduler() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A scheduler, with a member that joined it by the command line."""
    code = (
        "import asyncio; from distributed import Scheduler\n"
        "async def main():\n"
        "    async with Scheduler(host='127.0.0.1', port=0, dashboard=False) as found:\n"
        "        print(found.address, flush=True); await found.finished()\n"
        "asyncio.run(main())"
    )
    variables = {**os.environ, "PYTHONPATH": IMPORT_PATH, "DASK_LOGGING__DISTRIBUTED": "critical"}
    quiet = {"stderr": subprocess.DEVNULL, "env": variables, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **quiet) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        command = [sys.executable, "-m", "opgauge", "cluster", "worker", address, "--gpus", "none", "--cpu"]
        with subprocess.Popen([*command, "--references", "0"], stdout=subprocess.DEVNULL, **quiet) as joined:  # type: ignore[call-overload]
            try:
                yield process, address
            finally:
                for one in (joined, process):
                    one.kill()
