"""Runs over a cluster: peaks of the members decide what is possible, options and signals are heeded."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from opgauge.harness.case.casejson import case_to_json
from opgauge.harness.cli.app import app
from opgauge.harness.cli.options import load
from opgauge.harness.cluster import member
from opgauge.harness.cluster.dispatch import Measured
from opgauge.harness.cluster.local import local_cluster, member_options
from opgauge.harness.cluster.spread import Runs
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Environment, Measurement, Result, Status
from opgauge.harness.run import remeasure
from opgauge.harness.run.compiling import ONCE
from opgauge.harness.run.runner import plan
from opgauge.harness.store import Store
from tests.harness.test_reliability import LONG_RUN, start, wait_for_results

if TYPE_CHECKING:
    from distributed import Client

    from opgauge.harness.result.result import Trial

pytest.importorskip("distributed")

SMALL = next(case for case in load(None, ops=["sign"]) if "smoke" in case.tags)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A member that times the CPU, whose ceilings take little time."""
    specification = member_options([], cpu_slots=1, references=0)
    for one in specification.values():
        one["options"]["preload"] = [one["options"]["preload"], "tests.faulty.brief_member"]
    with local_cluster(specification) as found:
        yield found


def result_of(trial: Trial, nanoseconds: float) -> Result:
    """A valid result of 7000 bytes."""
    return Result(trial, Status.OK, measurement=Measurement((nanoseconds,), "fake", 1), bytes=7000)


@pytest.mark.parametrize(("ceilings", "status"), [(True, "wrong"), (False, "ok")])
def test_a_member_judges_times_by_its_own_peaks(
    ceilings: bool,
    status: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A time that its device cannot reach is wrong, and the peaks come back with the results."""
    trials = plan([SMALL], implementations=["optimized"])
    executor = SimpleNamespace(
        ceilings=lambda device: Ceilings(device, copy_gbps=1.0),
        run=lambda trials, **_: [result_of(trial, 1000.0) for trial in trials],
        renew=lambda: None,
    )
    monkeypatch.setattr(member, "LocalExecutor", lambda **_: executor)
    monkeypatch.setattr(member, "_measuring", member._Measuring)
    found = member.run_case([to_json(trial) for trial in trials], to_json(ONCE), 60.0, ceilings=ceilings)
    assert [one["status"] for one in found["results"]] == [status]
    assert (found["ceilings"] or {}).get("copy_gbps") == (1.0 if ceilings else None)


def test_a_run_keeps_the_best_peaks_of_its_members(tmp_path: Path) -> None:
    """Members of one kind measure at different moments; a slower measurement changes nothing."""
    (trial,) = plan([SMALL], implementations=["optimized"])
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        runs = Runs(store, "test")
        seen = []
        for gbps in (3.0, 5.0, 4.0):
            reached = Ceilings("cpu", copy_gbps=gbps)
            runs.add(Measured(result_of(trial, 9000.0), Environment({"cpu.model": "x"}, {}), reached, "host"))
            seen.append(store.ceilings(runs.last)["cpu"].copy_gbps)
        assert seen == [3.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ahead", "2"], "run `opgauge compile` on the hosts of the cluster"),
        (["--profile"], "leave out --gpus and --cluster"),
        (["--gpus", "all"], "give one of them"),
    ],
)
def test_an_option_that_a_cluster_cannot_heed_is_refused(
    client: Client, options: Sequence[str], words: str, tmp_path: Path
) -> None:
    """It is not passed over in silence."""
    found = _run(client, tmp_path, *options)
    assert found.exit_code == 2
    assert words in " ".join(found.output.replace("│", " ").split())


def test_a_dry_run_over_a_cluster_measures_nothing(client: Client, tmp_path: Path) -> None:
    """It lists the trials, and no run is stored."""
    found = _run(client, tmp_path, "--dry-run", "--json")
    assert found.exit_code == 0, found.output
    assert {one["case_id"] for one in json.loads(found.stdout)["trials"]} == {case_to_json(SMALL)["id"]}
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        assert not store.runs(9)


def _run(client: Client, folder: Path, *options: str) -> Any:
    address = client.scheduler_info()["address"]
    fixed = ["--device", "cpu", "--case", SMALL.id, "--db", f"sqlite:///{folder}/x.db", "--cluster", address]
    return CliRunner().invoke(app, ["run", *fixed, *options], env={"COLUMNS": "200"})


def test_quiet_and_peaks_pass_through_a_cluster(client: Client, tmp_path: Path) -> None:
    """A run without output stores its result, with the peaks of the member."""
    found = _run(client, tmp_path, "--ceilings", "--quiet", "--budget", "0.001", "-i", "optimized")
    assert (found.exit_code, found.stdout) == (0, ""), found.output
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        (run,) = store.runs(9)
        assert [one.status for one in store.results(run.id)] == [Status.OK]
        assert store.ceilings(run.id)["cpu"].copy_gbps


def test_undecided_cases_are_measured_again_in_other_processes(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --remeasure, as on one device: a block of its own for each process, until all is decided."""
    monkeypatch.setattr(remeasure, "is_undecided", lambda row: len(row.blocks) < 3)
    found = _run(
        client, tmp_path, "--quiet", "--budget", "0.001", "-i", "optimized", "-i", "baseline", "--remeasure", "9"
    )
    assert found.exit_code == 0, found.output
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        (run,) = store.runs(9)
        blocks = [(one.trial.implementation, one.block) for one in store.results(run.id)]
    assert sorted(blocks) == [(name, block) for name in ("baseline", "optimized") for block in range(3)]


def test_each_number_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child process is replaced when the number changes, and only then."""
    executor, seen = Mock(), []
    monkeypatch.setattr(member, "LocalExecutor", lambda **_: executor)
    measuring = member._Measuring(60.0)
    for block in (0, 0, 1, 1, 2):
        measuring.in_process(block)
        seen.append(executor.renew.call_count)
    assert seen == [0, 0, 1, 1, 2]


def test_a_run_over_a_cluster_that_is_terminated_is_interrupted(client: Client, tmp_path: Path) -> None:
    """CI cancels by SIGTERM: the exit code says so, and the results so far are stored."""
    db = tmp_path / "x.db"
    address = client.scheduler_info()["address"]
    with start(db, command=(*LONG_RUN, "--device", "cpu", "--cluster", address)) as process:
        wait_for_results(process, db)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    with Store.open(f"sqlite:///{db}") as store:
        (run,) = store.runs(9)
        assert run.status == "interrupted"
