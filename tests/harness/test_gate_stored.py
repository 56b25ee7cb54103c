"""Comparing with stored results, histories of series, and the self-tests of the gate."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opgauge.harness.case.case import EXPLORED, GatePolicy
from opgauge.harness.case.file import load_cases
from opgauge.harness.errors import NothingError
from opgauge.harness.gate import pairs
from opgauge.harness.gate.clock import LOOKING, PEAKS, Clock
from opgauge.harness.gate.gate import ExitCode, Schedule
from opgauge.harness.gate.plan import GatePlan
from opgauge.harness.gate.policy import Policy
from opgauge.harness.gate.record import Job, JobRecord
from opgauge.harness.gate.stored import load, noise_floors, runs_of_branch
from opgauge.harness.report.history import find_series
from opgauge.harness.result.result import Environment, Measurement, Result, Status, Trial
from opgauge.harness.run.environment import capture
from opgauge.harness.store import Store
from opgauge.harness.store.projects import Commit, ProjectSettings, add_commits, save_project
from opgauge.harness.store.self_tests import list_self_tests
from opgauge.harness.trust.self_test import caught, false_alarms, out_of_reach
from opgauge.harness.trust.share import Share
from opgauge.harness.trust.table import caught_table
from tests.commandline import run_here
from tests.gateruns import a_run, compared
from tests.tinytree import TinyTree

ROOT = Path(__file__).parent.parent.parent
CASE = next(case for case in load_cases([ROOT / "cases" / "sign.yaml"]) if case.name == "sizes[x=0]")
DECIDED_OR_NOT = (ExitCode.PASSED, ExitCode.SLOWER, ExitCode.UNDECIDED)
QUICK = ("--pairs", "4", "--most-pairs", "4", "--block-s", "0.01", "--device", "cpu")


def gate(*arguments: str, db: Path, codes: tuple[int, ...]) -> str:
    """Run `opgauge gate` on this project's own tree."""
    done = run_here(
        *("gate", "--case", CASE.id, *QUICK, *arguments),
        cwd=ROOT,
        variables={"PYTHONPATH": str(ROOT), "OPGAUGE_DB": f"sqlite:///{db}"},
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout + done.stderr


def keep_runs(db: Path, times_ns: Sequence[float], here: Environment, branch: str = "trunk", **soft: str) -> None:
    """A run for each time."""
    with Store.open(f"sqlite:///{db}") as store:
        for number, time_ns in enumerate(times_ns):
            run = store.begin_run(replace(here, soft={"commit": f"{number:040x}", "branch": branch, **soft}))
            measurement = Measurement((time_ns,), "test", 1)
            store.add_result(run, Result(Trial(CASE, "optimized", "cpu", "cpu"), Status.OK, measurement=measurement))
            store.finish_run(run)


def test_stored_runs_of_a_branch_stand_for_the_base(tmp_path: Path) -> None:
    """`--against BRANCH` pairs this tree's blocks with the branch's runs, and `--store` keeps them to compare with.

    What the verdict is depends on what else the machine does: one slow block among four leaves it open.
    """
    db = tmp_path / "runs.db"
    keep_runs(db, [1.0, 1.01, 0.99, 1.0, 1.01], capture(["cpu"]))
    text = gate("--against", "trunk", "--store", "--json", db=db, codes=(ExitCode.SLOWER, ExitCode.UNDECIDED))
    (found,) = json.loads(text.rpartition("\n}\n")[0] + "}")["cases"]
    blocks_ns = found["sides"]["head"]["blocks_ns"]
    assert (found["pairs"], len(blocks_ns)) == (4, 4)
    assert all(0.99 <= mode <= 1.01 for mode in found["modes_ns"]["base"])
    stored = text.rpartition("run ")[2].split()[0]
    again = json.loads(gate("--against", stored, "--json", db=db, codes=DECIDED_OR_NOT))["cases"][0]
    assert again["pairs"] == 4
    assert all(min(blocks_ns) <= mode <= max(blocks_ns) for mode in again["modes_ns"]["base"])


def test_results_of_another_machine_are_refused(tmp_path: Path) -> None:
    """Where the hard fingerprint differs the gate says what differs, compares nothing, and ends with 5."""
    db = tmp_path / "runs.db"
    here = capture(["cpu"])
    keep_runs(db, [1.0], replace(here, hard={**here.hard, "cpu.model": "Z80"}))
    assert "and 'Z80' there" in gate("--against", "trunk", db=db, codes=(ExitCode.NOTHING,))
    assert "no run and no branch 'nowhere'" in gate("--against", "nowhere", db=db, codes=(ExitCode.NOTHING,))


def test_a_branch_is_its_latest_commits(tmp_path: Path) -> None:
    """Runs are taken by the order of commits, of this project, without modified trees unless there is nothing else."""
    db, here = tmp_path / "runs.db", capture(["cpu"], tree=ROOT)
    for number in (*range(3, 15), 2, 1, 0):
        soft = {"commit": f"{number:040x}", "commit_time": f"2026-11-{1 + number:02}T00:00:00+00:00"}
        keep_runs(db, [float(number)], here, project=here.project, **soft)
    keep_runs(db, [1.0] * 2, here, project="another")
    keep_runs(db, [1.0] * 2, here, project=here.project, dirty="yes")
    keep_runs(db, [1.0], here, branch="topic", project=here.project, dirty="yes", commit="f-dirty")
    with Store.open(f"sqlite:///{db}") as store:
        found = runs_of_branch(store.engine, "trunk", project=here.project)
        assert [int(run.commit, 16) for run in found] == list(range(14, -1, -1))
        assert [run.commit for run in runs_of_branch(store.engine, "topic")] == ["f-dirty"]
        stored = load(store.engine, "trunk", ROOT, here, ["cpu"])
        assert int(stored.tree.commit, 16) == 14
        assert [[one.samples_ns for one in blocks] for blocks in stored.blocks.values()] == [
            [(float(number),) for number in range(5, 15)]
        ]


def test_cases_that_an_exploration_drew_are_not_removed(tmp_path: Path) -> None:
    """A branch's explorations are stored like its runs: what they drew is in no case file, and no tree has lost it."""
    db, here = tmp_path / "runs.db", capture(["cpu"])
    keep_runs(db, [1.0], here)
    drawn = replace(CASE, name="seed-1-0", shapes={"x": (5, 3)}, tags=(EXPLORED,))
    with Store.open(f"sqlite:///{db}") as store:
        run = store.begin_run(here)
        measurement = Measurement((1.0,), "test", 1)
        store.add_result(run, Result(Trial(drawn, "optimized", "cpu", "cpu"), Status.OK, measurement=measurement))
        store.finish_run(run)
        stored = load(store.engine, run, ROOT, here, ["cpu"])
        both = load(store.engine, "trunk", ROOT, here, ["cpu"])
    assert not stored.blocks
    assert {subject.case_id for subject in both.blocks} == {CASE.id}


def test_history_names_the_run_where_the_level_changed(tmp_path: Path) -> None:
    """A step of 10 % at the 13th run is found there; runs of other branches and machines are other series."""
    db = tmp_path / "runs.db"
    here = Environment({"cpu.model": "m"}, {})
    level = [1000.0 * (1 + 0.001 * ((7 * number) % 5)) * (1.1 if number >= 12 else 1.0) for number in range(24)]
    keep_runs(db, level, here)
    keep_runs(db, [5000.0] * 12, here, branch="other")
    keep_runs(db, [9000.0] * 3, Environment({"cpu.model": "n"}, {}))
    with Store.open(f"sqlite:///{db}") as store:
        found = find_series(store.engine, "sign/sizes*", branch="trunk")
        assert [(one.machine, len(one.points)) for one in found] == [("model m", 24), ("model n", 3)]
        (change,) = found[0].changes()
        assert change.index == 12
        assert change.ratio == pytest.approx(1.1, abs=0.005)
        assert not found[1].changes()
        with pytest.raises(NothingError):
            find_series(store.engine, "lerp")


def test_history_names_the_cases_of_a_sweep(tmp_path: Path) -> None:
    """The name without its values is no stored case: those that it begins are named."""
    keep_runs(tmp_path / "runs.db", [1000.0], Environment({}, {}))
    with Store.open(f"sqlite:///{tmp_path}/runs.db") as store:
        (path,) = {f"{one.subject.op}/{one.subject.case}" for one in find_series(store.engine, "sign/*")}
        assert "[" in path
        with pytest.raises(NothingError, match=rf"did you mean {re.escape(repr(path))}"):
            find_series(store.engine, path.partition("[")[0])


def test_history_is_in_the_order_of_commits(tmp_path: Path) -> None:
    """Whatever order the commits are measured in, the level changes at the commit that changed it."""
    db = tmp_path / "runs.db"
    for number in (7 * place % 24 for place in range(24)):
        soft = {"commit": f"{number:040x}", "commit_time": f"2026-11-{1 + number:02}T00:00:00+00:00"}
        keep_runs(db, [1000.0 + 7 * number % 5 + 100.0 * (number >= 12)], Environment({"cpu.model": "m"}, {}), **soft)
    with Store.open(f"sqlite:///{db}") as store:
        (found,) = find_series(store.engine, "sign/sizes*")
    assert [int(point.commit, 16) for point in found.points] == list(range(24))
    assert [change.index for change in found.changes()] == [12]


def history_of_commits(db: Path, *arguments: str) -> list[int]:
    """Numbers of the commits in the only series that `opgauge history` prints."""
    done = run_here("history", "sign/sizes*", "--db", str(db), "--json", *arguments, cwd=db.parent, variables={})
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    return [int(point["commit"].removesuffix("-dirty"), 16) for point in found["points"]]


def test_an_old_commit_that_is_measured_later_keeps_its_place(tmp_path: Path) -> None:
    """Without times of commits, the second run of the first commit comes before the runs of later commits."""
    db, here = tmp_path / "runs.db", Environment({}, {})
    keep_runs(db, [1000.0] * 3, here)
    keep_runs(db, [1000.0], here)
    assert history_of_commits(db) == [0, 0, 1, 2]
    assert history_of_commits(db, "--branch", "trunk") == [0, 0, 1, 2]


def test_the_graph_of_commits_goes_before_their_times(tmp_path: Path) -> None:
    """A rebased commit has an older time than its parent, and still comes after it where the parents are known."""
    db = tmp_path / "runs.db"
    commits = []
    for number, day in enumerate((5, 6, 2)):
        committed = datetime(2026, 11, day, tzinfo=UTC)
        soft = {"commit": f"{number:040x}", "commit_time": committed.isoformat(), "project": "kernels"}
        keep_runs(db, [1000.0], Environment({}, {}), **soft)
        parents = (f"{number - 1:040x}",) if number else ()
        commits.append(Commit(f"{number:040x}", parents, committed, "", ""))
    assert history_of_commits(db) == [2, 0, 1]
    with Store.open(f"sqlite:///{db}") as store:
        add_commits(store.engine, "kernels", commits)
    assert history_of_commits(db) == [0, 1, 2]


def test_modified_trees_and_other_branches_are_no_part_of_a_history(tmp_path: Path) -> None:
    """A series has clean runs of the default branch, or of `--branch`; projects have series of their own."""
    db, here = tmp_path / "runs.db", Environment({}, {})
    keep_runs(db, [1000.0] * 2, here)
    keep_runs(db, [1000.0], here, dirty="yes", commit="7-dirty")
    keep_runs(db, [1000.0], here, branch="topic", commit="8")
    assert history_of_commits(db) == [0, 1]
    assert history_of_commits(db, "--branch", "topic") == [8]
    with Store.open(f"sqlite:///{db}") as store:
        with pytest.raises(NothingError, match="on nowhere"):
            find_series(store.engine, "sign", branch="nowhere")
        save_project(store.engine, ProjectSettings("", default_branch="topic"))
    assert history_of_commits(db) == [8]
    keep_runs(db, [1000.0], here, project="kernels")
    with Store.open(f"sqlite:///{db}") as store:
        found = find_series(store.engine, "sign/sizes*")
    assert [(one.project, len(one.points)) for one in found] == [("", 1), ("kernels", 1)]


def test_bounds_of_a_share() -> None:
    """Clopper and Pearson's bounds: 0 of 200, 5 of 10, all of 20, as their tables have them."""
    assert Share(0, 200).high == pytest.approx(0.01828, abs=1e-4)
    assert Share(5, 10).low == pytest.approx(0.1871, abs=1e-4)
    assert Share(5, 10).high == pytest.approx(0.8129, abs=1e-4)
    assert Share(20, 20).low == pytest.approx(0.8316, abs=1e-4)
    assert (Share(0, 9).low, Share(9, 9).high) == (0.0, 1.0)


def test_false_alarms_are_counted() -> None:
    """Of two runs of the same code, one red: shares of decisions and of runs, and a noise floor per case."""
    quiet, loud = a_run([compared("a", 1.0), compared("b", 1.0)]), a_run([compared("a", 1.3), compared("b", 1.0)])
    data = false_alarms([quiet, loud])
    assert (data["decisions"], data["slower"], data["red_run_share"]) == (4, 1, 0.5)
    assert data["false_alarm_share"] == 0.25
    assert [one["noise_floor"] is not None for one in data["cases"]] == [True, True]
    assert caught([loud], 0.3)["caught_share"] == 0.5


def test_noise_floors_come_from_long_self_tests_of_this_machine(tmp_path: Path) -> None:
    """The database's self-tests say how far a series moves by itself, where they had runs enough."""
    from opgauge.harness.store.self_tests import SelfTest, add_self_test

    here = Environment({"cpu.model": "m"}, {})
    case = {"case_id": "0", "implementation": "optimized", "device": "cpu", "noise_floor": 0.04}
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        for machine, runs, floor in (("model m", 3, 0.5), ("model n", 30, 0.6), ("model m", 30, 0.04)):
            data = {"machine": machine, "runs": runs, "cases": [{**case, "noise_floor": floor}]}
            add_self_test(store.engine, SelfTest("aa", datetime.now(UTC), "", "cpu", data))
        assert noise_floors(store.engine, here, ["cpu"]) == {("0", "optimized", "cpu"): 0.04}


def test_the_same_code_is_found_the_same_and_stored(tmp_path: Path) -> None:
    """`aa` prints a table with bounds, goals and the share of wall time that was measurement, and stores the same."""
    tree = TinyTree(tmp_path / "repository")
    tree.set_ops("tiny", {"double": "sane"})
    tree.write("cases/policy.yaml", "defaults: {threshold: 5}\n")
    tree.commit("one")
    text = tree.opgauge("aa", "--runs", "2", *QUICK, "--record", "made.json", code=0)
    assert "| decisions that say slower or faster | 0 of 2 (0 %; 95 % interval 0 … 84.2 %) | ≤ 0.1 % |" in text
    assert re.search(r"\| wall time that is measurement \| \d+ % of \d+ s \| ≥ 50 % \|", text)
    (case,) = json.loads((tree.path / "made.json").read_text())["cases"]
    assert (case["case"], len(case["pairs"]), case["ruler"], case["method"]) == ("small", 8, [], "interleaved/2")
    with Store.open(f"sqlite:///{tree.path}/opgauge.db") as store:
        (aa,) = list_self_tests(store.engine, "aa")
    assert (aa.data["decisions"], aa.data["slower"], aa.data["faster"], aa.data["red"]) == (2, 0, 0, 0)
    assert 0 < aa.data["measuring_share"] < 1


def test_each_run_counts_its_own_time() -> None:
    """Over runs that share a worker pool, or have one each, the shares of wall time add up and stay below one."""
    runs = [
        replace(a_run([compared("a", 1.0)]), clock=Clock(2, 9.0, {"measure": seconds, "first call": 1.0}))
        for seconds in (4.0, 6.0)
    ]
    assert false_alarms(runs)["measuring_share"] == 0.5
    assert caught(runs, 0.05, seconds=40.0)["measuring_share"] == 0.25
    spent = {"measure": 10.0, "first call": 2.0, "between phases": 6.0}
    assert false_alarms(runs)["spent_s"] == {**spent, "between blocks": 2.0}
    assert caught(runs, 0.05, seconds=40.0)["spent_s"] == {**spent, "between blocks": 22.0}
    before = Clock(2, 4.0, {"measure": 1.0}, {LOOKING: 3.0})
    after = Clock(5, 9.0, {"measure": 6.0, "prepare": 1.0}, {LOOKING: 5.0, PEAKS: 1.0})
    assert after.since(before) == Clock(3, 5.0, {"measure": 5.0, "prepare": 1.0}, {LOOKING: 2.0, PEAKS: 1.0})


def test_what_is_caught_is_counted_by_time_per_call_and_by_cost() -> None:
    """From 10 µs on counts what takes 50 µs too, and a slowdown that took 3 s per side is not caught within 2."""
    run = a_run([compared("a", 1.3), compared("b", 1.0)])
    for name, median_ns, sampling_s in (("a", 50_000.0, 0.3), ("b", 1_000.0, 0.1)):
        for outcomes in run.records[next(one for one in run.records if one.case == name)].outcomes.values():
            for pair, one in outcomes.items():
                measured = Measurement((median_ns,), "test", 1)
                outcomes[pair] = replace(one, measurement=measured, extra={"phases_s": {"measure": sampling_s * 2.5}})
    data = caught([run], 0.3)
    assert [data[f"{name}_share"] for name in ("caught", "caught_from_10_us", "caught_from_40_us")] == [0.5, 1.0, 1.0]
    assert (data["caught_from_10_us_within_2_s_share"], data["caught_from_10_us_within_10_s_share"]) == (0.0, 1.0)
    text = "\n".join(caught_table(data))
    assert "| ≥ 10 µs | 100 % (2.5 – 100 %) | 0 % (0 – 97.5 %) | 100 % (2.5 – 100 %) |" in text


def test_a_slowdown_within_the_threshold_is_said_to_be_out_of_reach() -> None:
    """At a threshold of 5 %, 5 % slower does not count as slower: no self-test may expect it to be caught."""
    subjects = [compared(name, 1.0).subject for name in ("a", "b")]
    laid = GatePlan(tuple(Job(subject, {}) for subject in subjects), own={subjects[0]: GatePolicy(threshold=0.02)})
    policy = Policy(defaults=GatePolicy(threshold=0.05))
    assert out_of_reach(laid, policy, 0.05) == [subjects[1]]
    assert out_of_reach(laid, policy, 0.06) == []


@pytest.mark.parametrize(
    ("device", "jobs", "sizes"),
    [
        ("cpu", 1, [1]),
        ("cpu", 17, [17]),
        ("cpu", 18, [9, 9]),
        ("cpu", 40, [13, 13, 14]),
        ("cuda:0", 71, [71]),
        ("cuda:0", 72, [36, 36]),
    ],
)
def test_batches_are_even(device: str, jobs: int, sizes: list[int]) -> None:
    """No few jobs are left over to pay for processes of their own, and none is lost; a GPU's are larger."""
    subject = replace(compared("a", 1.0).subject, device=device)
    subjects = [replace(subject, case=str(number)) for number in range(jobs)]
    records = {subject: JobRecord(Job(subject, {})) for subject in subjects}
    found = list(pairs._batches(records, dict.fromkeys(subjects, 4), pairs.PairPlan(Schedule(), method="blocks"), 1))
    assert [len(batch.records) for batch in found] == sizes
    assert [record.job.subject for batch in found for record in batch.records] == subjects
