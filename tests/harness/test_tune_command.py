"""`opgauge tune` as a person meets it, and what the rest of the harness makes of a tuning file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.gate.record import BASE, HEAD
from opgauge.harness.gate.unchanged import touched_folders
from opgauge.harness.measure import Limits
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Trial
from opgauge.harness.run.environment import capture
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.tree import Tree, changed_files, changed_folders
from opgauge.harness.tune import tuner
from opgauge.harness.worker import inventory, protocol
from opgauge.ops import TuningError, find_op
from opgauge.ops._core import tuning
from opgauge.ops._core.backend import device_model
from tests.commandline import Done, run_here
from tests.tinytree import TinyTree

ROOT = Path(__file__).parent.parent.parent
NAME = "normalization.cpu_chunks"
QUICK = Limits(budget_s=0.01, min_samples=1, max_samples=1, warmup_s=0.0)
CASES = """
op: normalization
cases:
  - {name: columns, tags: [seed], shapes: {x: [512, 200]}, dtype: float32}
  - {name: rows, tags: [full], shapes: {x: [2, 64, 3, 3]}, dtype: float32}
  - {name: tiny, tags: [smoke], shapes: {x: [5, 3]}, dtype: float32}
"""


def opgauge(*arguments: str, code: int = 0, **variables: str) -> Done:
    """Run `opgauge` and expect an exit code, without a traceback."""
    done = run_here(*arguments, cwd=ROOT, variables={"OPGAUGE_DB": "sqlite://", **variables})
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A file of small cases."""
    path = tmp_path / "normalization.yaml"
    path.write_text(CASES)
    return path


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A tuning file that departs from a default."""
    path = tmp_path / "named.json"
    path.write_text(json.dumps({"values": {NAME: 16}}))
    return path


def test_tune_writes_the_file_of_the_device(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command measures, prints a line per parameter, and writes a file that can be used."""
    monkeypatch.setattr(tuner, "LIMITS", QUICK)
    output = tmp_path / "out" / "cpu.json"
    done = opgauge(
        "tune", str(cases), "--device", "cpu", "--parameter", NAME, "--budget", "0.1", "--output", str(output)
    )
    assert NAME in done.stdout
    assert str(output) in done.stdout
    held = json.loads(output.read_text())
    assert (held["backend"], held["device"]) == ("cpu", device_model("cpu"))
    assert held["parameters"][NAME]["cases"] == 1
    assert held["parameters"][NAME]["default"] == 64
    assert tuning.read(output) == held["values"]


def test_a_dry_run_lists_and_measures_nothing(cases: Path, tmp_path: Path) -> None:
    """Parameters, candidates and numbers of cases, small ones not counted; no file."""
    output = tmp_path / "cpu.json"
    done = opgauge("tune", str(cases), "--device", "cpu", "--op", "normalization", "--dry-run", "--output", str(output))
    (line,) = [line for line in done.stdout.splitlines() if NAME in line]
    assert line.split()[1] == "64"
    assert " 2 " in line
    assert not output.exists()


def test_mistakes_are_one_line(cases: Path, tmp_path: Path) -> None:
    """A misspelt parameter or op names the nearest; no parameter, no case and no device are told apart."""
    assert "did you mean 'normalization.cpu_chunks'" in opgauge("tune", "--parameter", f"{NAME}x", code=2).stderr
    assert "did you mean 'p_norm'" in opgauge("tune", "--op", "pnorm", code=2).stderr
    assert "no device 'gpu'" in opgauge("tune", "--device", "gpu", code=2).stderr
    assert "no such parameter on cpu" in opgauge("tune", "--device", "cpu", "--op", "dot", code=5).stderr
    none = ("tune", str(cases), "--device", "cpu", "--parameter", "deformable_conv.cpu_depth")
    assert "no case of deformable_conv" in opgauge(*none, code=5).stderr
    assert "there is no cuda:7 here" in opgauge("tune", "--device", "cuda:7", code=5).stderr
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    done = opgauge(
        "run", str(cases), "--device", "cpu", "--name", "rows", "-i", "optimized", code=2, OPGAUGE_TUNING=str(wrong)
    )
    assert f"opgauge: {wrong}: no JSON" in done.stderr


def test_a_run_names_what_it_could_not_use(cases: Path, named: Path) -> None:
    """A value that is no candidate is said on stderr, and the run goes on with the default."""
    named.write_text(json.dumps({"values": {NAME: 17}}))
    done = opgauge(
        *("run", str(cases), "--device", "cpu", "--name", "rows", "-i", "optimized", "--budget", "0.01"),
        OPGAUGE_TUNING=str(named),
    )
    assert f"{NAME} is 17, not one of 8, 16, 32, 64, 128, 256; it stays 64" in done.stderr


def trial(**shape: tuple[int, ...]) -> dict[str, object]:
    """A small normalization over columns, for a worker."""
    case = Case("normalization", "small", shape or {"x": (300, 200)}, "float32", find_op("normalization").params())
    return to_json(Trial(case, "optimized", "cpu", "cpu"))


def test_workers_use_the_named_file_and_the_values_of_a_request(named: Path) -> None:
    """The named file is in force in a worker; values sent with a trial go before it, for that trial only."""
    with LocalExecutor(limits=QUICK, environment={"OPGAUGE_TUNING": str(named)}) as executor:
        found = [executor.run_plain(trial(), tuning=values) for values in (None, {NAME: 8}, None)]
        assert executor.ask(protocol.NameModel("cpu")) == device_model("cpu")
    assert [item["status"] for item in found] == ["ok"] * 3
    assert [item["extra"]["tuning"] for item in found] == [{NAME: 16}, {NAME: 8}, {NAME: 16}]


def test_a_worker_does_without_a_file_that_went_wrong(tmp_path: Path) -> None:
    """What happens to the file after the start costs no measurement."""
    with LocalExecutor(limits=QUICK, environment={"OPGAUGE_TUNING": str(tmp_path / "gone.json")}) as executor:
        found = executor.run_plain(trial())
    assert found["status"] == "ok"
    assert found["extra"]["tuning"] == {NAME: 64}


def test_no_worker_is_started_with_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a file is told at once."""
    monkeypatch.setenv("OPGAUGE_TUNING", str(tmp_path / "none.json"))
    with pytest.raises(TuningError, match=r"none\.json"):
        LocalExecutor()


def test_the_environment_says_which_tuning_was_in_force(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash of the departures, `defaults` without any; it does not decide what may be compared."""
    monkeypatch.delenv("OPGAUGE_TUNING", raising=False)
    monkeypatch.setattr(tuning, "FOLDER", named.parent / "none")
    before = capture(["cpu"])
    monkeypatch.setenv("OPGAUGE_TUNING", str(named))
    after = capture(["cpu"])
    monkeypatch.delenv("OPGAUGE_TUNING")
    assert before.soft["cpu.tuning"] == capture(["cpu"]).soft["cpu.tuning"] == "defaults"
    assert len(after.soft["cpu.tuning"]) == 12
    assert before.hard == after.hard


def test_a_changed_tuning_file_counts_for_every_op(tmp_path: Path) -> None:
    """`--changed` takes a tuning file for shared code."""
    tree = TinyTree(tmp_path / "repo")
    tree.set_ops("small", {"small": "sane"})
    commit = tree.commit("first")
    tree.write("ops/small/notes.txt", "x")
    assert changed_folders(tree.path, changed_files(tree.path, commit)) == {"small"}
    tree.write("ops/tuning/nvidia-h200.json", '{"values": {}}')
    assert changed_folders(tree.path, changed_files(tree.path, commit)) is None
    trees = {BASE: Tree(tree.path, commit, "main"), HEAD: Tree(tree.path, commit, "this tree")}
    assert touched_folders(tree.path, trees, ()) == (None, ("ops/tuning/nvidia-h200.json",))


def test_a_changed_tuning_file_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--trust-hash` does not take kernels for unchanged whose launch parameters are not."""
    (tmp_path / "tuning").mkdir()
    monkeypatch.setattr(inventory, "ops", SimpleNamespace(__path__=[str(tmp_path)]))
    before = inventory.digest("small", "cuda")
    (tmp_path / "tuning" / "nvidia-h200.json").write_text('{"values": {}}')
    assert inventory.digest("small", "cuda") != before
