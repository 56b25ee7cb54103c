"""The environment: what it holds, and that nothing missing makes it fail."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.cli.config import config
from opgauge.harness.cli.version import version_text
from opgauge.harness.project.active import use
from opgauge.harness.project.configuration import read_project
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Environment
from opgauge.harness.run import environment
from opgauge.harness.run.environment import capture, case_set, changes, commit, revision
from opgauge.ops import BackendError, find_op


def a_case(name: str, length: int) -> Case:
    """A small p_norm."""
    return Case("p_norm", name, {"x": (5, length)}, "float32", find_op("p_norm").params())


def test_the_cpu_decides_with_its_model_and_threads() -> None:
    """On the CPU model and threads are hard; versions and the commit are soft."""
    found = capture(["cpu"], threads=1)
    assert set(found.hard) == {"cpu.model", "cpu.threads"}
    assert found.hard["cpu.threads"] == "1"
    assert {"host", "system", "python", "numpy", "numba"} <= set(found.soft)
    assert all(isinstance(value, str) and value for value in {**found.hard, **found.soft}.values())


def test_nothing_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git, nvidia-smi, NVML and /proc a GPU is unknown and there is no commit."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("opgauge.harness.run.environment.importlib.import_module", _no_module)
    monkeypatch.setattr(environment, "stripped_text", lambda path: "")
    found = capture(["cpu", "cuda:0"])
    assert found.hard_of("cuda:0") == {"model": "unknown", "mig": "unknown", "driver_major": "unknown"}
    assert found.hard_of("cpu")["model"]
    assert found.commit == ""


def _no_module(name: str) -> None:
    raise ImportError(name)


class NvmlError(Exception):
    """As NVML's."""


def fake_nvml(**changes: Any) -> SimpleNamespace:
    """A stand-in for NVIDIA's management library with one GPU."""
    facts: dict[str, Any] = {
        "NVMLError": NvmlError,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda handle: "GPU-1b2c",
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        "nvmlDeviceGetClockInfo": lambda handle, kind: 345,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
    }
    return SimpleNamespace(**{**facts, **changes})


def test_a_gpu_decides_with_model_mig_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, MIG and the driver's major version are hard; UUID, the rest of the driver and clocks are soft."""
    monkeypatch.setattr("opgauge.harness.run.environment.importlib.import_module", lambda name: fake_nvml())
    found = capture(["cuda:0"])
    assert found.hard_of("cuda:0") == {"model": "NVIDIA H200", "mig": "off", "driver_major": "580"}
    assert found.soft["cuda:0.driver"] == "580.65.06"
    assert found.soft["cuda:0.sm_clock_max_mhz"] == "1980"
    assert found.soft["cuda:0.uuid"] == "GPU-1b2c"


def test_nvidia_smi_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library fails, nvidia-smi is asked."""

    def fail() -> None:
        raise NvmlError

    monkeypatch.setattr(
        "opgauge.harness.run.environment.importlib.import_module", lambda name: fake_nvml(nvmlInit=fail)
    )
    monkeypatch.setattr(environment, "_output", lambda *command: "NVIDIA H200, 580.65.06, Enabled, GPU-1b2c, 345, 1980")
    found = capture(["cuda:0"])
    assert found.soft["cuda:0.uuid"] == "GPU-1b2c"
    assert found.hard_of("cuda:0") == {"model": "NVIDIA H200", "mig": "on", "driver_major": "580"}


def test_what_is_no_device_raises() -> None:
    """A misspelt device is an error of the caller."""
    with pytest.raises(BackendError, match="gpu"):
        capture(["gpu"])


def test_the_commit_says_when_what_is_measured_differs_from_it(tmp_path: Path) -> None:
    """A changed or new file under ops makes the commit dirty; one elsewhere does not."""
    assert commit(tmp_path) == ""
    (tmp_path / "ops" / "_core").mkdir(parents=True)
    (tmp_path / "ops" / "a.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    clean = commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "notes.txt").write_text("elsewhere")
    assert commit(tmp_path) == clean
    (tmp_path / "ops" / "b.py").write_text("2")
    assert commit(tmp_path) == f"{clean}-dirty"
    assert commit(tmp_path, but=tmp_path / "ops" / "b.py") == clean
    assert commit(tmp_path, but=tmp_path.parent / "b.py") == f"{clean}-dirty"
    (tmp_path / "ops" / "a.py").write_text("3")
    assert commit(tmp_path, but=tmp_path / "ops" / "b.py") == f"{clean}-dirty"


def git(folder: Path, *arguments: str) -> None:
    """Run git in `folder`."""
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments], check=True
    )


def test_a_run_names_the_project_its_commit_time_and_the_version(tmp_path: Path) -> None:
    """Project, commit time and dirtiness are the measured folder's; opgauge's version stands beside them."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "kernels"\n')
    git(tmp_path, "init", "-q", "-b", "trunk")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one", "--date=2020-01-01T00:00:00Z")
    found = capture(["cpu"], tree=tmp_path)
    assert (found.project, found.branch, found.is_dirty) == ("kernels", "trunk", False)
    assert found.opgauge == version("opgauge")
    assert datetime.fromisoformat(found.commit_time).tzinfo == UTC
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "kernels"\nversion = "2"\n')
    changed = capture(["cpu"], tree=tmp_path)
    assert changed.is_dirty
    assert changed.commit == f"{found.commit}-dirty"
    assert from_json(Environment, to_json(changed)) == changed


def test_a_folder_inside_another_repository_is_not_that_repositorys(tmp_path: Path) -> None:
    """An untracked folder of a repository has no commit and no branch; a tracked one has the repository's."""
    git(tmp_path, "init", "-q", "-b", "trunk")
    inside, package = tmp_path / "unpacked", tmp_path / "package"
    for folder in (inside, package):
        folder.mkdir()
        (folder / "a.py").write_text("1")
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-qm", "one")
    found = revision(inside)
    assert (found.project, found.commit, found.branch, found.time) == ("unpacked", "", "", "")
    assert revision(package).commit
    assert revision(package).branch == "trunk"


@pytest.mark.parametrize(("key", "expected"), [('name = "gauges"', "gauges"), ("", "package")])
def test_the_configured_name_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, expected: str
) -> None:
    """It precedes the name of the package, and `opgauge config` shows which counts."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "package"\n')
    (tmp_path / "opgauge.toml").write_text(f"{key}\n")
    use(read_project(tmp_path / "opgauge.toml"))
    try:
        assert revision(tmp_path).project == expected
        config(as_json=True)
    finally:
        use(None)
    assert json.loads(capsys.readouterr().out)["name"] == expected


def test_runs_stored_before_these_fields_can_be_read() -> None:
    """Without the entries the project is unknown, and a commit's suffix alone says that it was dirty."""
    old = from_json(Environment, {"hard": {}, "soft": {"commit": "abc-dirty"}})
    assert (old.project, old.commit_time, old.opgauge, old.is_dirty) == ("", "", "", True)


def test_the_set_of_cases_has_a_hash() -> None:
    """Order and names do not matter; content does."""
    one, two = a_case("one", 3), a_case("two", 4)
    assert case_set([one, two]) == case_set([two, a_case("renamed", 3)])
    assert case_set([one]) != case_set([two])
    assert case_set([]) == ""


def test_nothing_heavy_is_imported() -> None:
    """Capturing imports neither CuPy nor torch nor Numba."""
    program = (
        "import sys; from opgauge.harness.run.environment import capture; capture(['cpu', 'cuda:0']);"
        "print([name for name in ('cupy', 'torch', 'numba', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


def test_hard_entries_of_one_device() -> None:
    """cuda:1 is not confused with cuda:10."""
    found = Environment({"cuda:1.model": "a", "cuda:10.model": "b"}, {})
    assert found.hard_of("cuda:1") == {"model": "a"}


def test_what_results_depend_on_is_named_where_it_changed() -> None:
    """Hardware, versions, the commit and launch parameters count; the host, its clocks and other devices do not."""
    begun = Environment(
        {"cuda:0.model": "NVIDIA H200", "cpu.model": "a CPU"},
        {"commit": "1", "torch": "2.11", "cuda:0.driver": "580.1", "cuda:0.sm_clock_mhz": "345", "host": "one"},
    )
    same = Environment({"cuda:0.model": "NVIDIA H200"}, {**begun.soft, "host": "two", "cuda:0.sm_clock_mhz": "1980"})
    assert not changes(same, begun, ["cuda"])
    hard = {"cuda:0.model": "NVIDIA H100"}
    soft = {"commit": "2", "cuda:0.driver": "580.2", "cuda:0.tuning": "x", "cuda:1.tuning": "y"}
    assert changes(Environment(hard, soft), begun, ["cuda"]) == [
        "cuda:0.model is 'NVIDIA H100' here and 'NVIDIA H200' there",
        "commit is '2' here and '1' there",
        "torch is 'unknown' here and '2.11' there",
        "cuda:0.driver is '580.2' here and '580.1' there",
        "cuda:0.tuning is 'x' here and 'unknown' there",
    ]
    assert changes(begun, Environment({}, begun.soft), ["cpu"]) == ["it has nothing of cpu"]


def test_the_branch_is_named_by_the_variable_by_git_or_by_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`OPGAUGE_BRANCH` before git, git before CI's name for a detached head; none of them is no branch."""
    for name in ("OPGAUGE_BRANCH", "GITHUB_ACTIONS", "GITHUB_HEAD_REF", "GITHUB_REF_NAME", "GITHUB_BASE_REF"):
        monkeypatch.delenv(name, raising=False)
    assert not revision(tmp_path).branch
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_REF_NAME", "7/merge")
    assert revision(tmp_path).branch == "7/merge"
    monkeypatch.setenv("GITHUB_HEAD_REF", "faster-sums")
    assert revision(tmp_path).branch == "faster-sums"
    monkeypatch.setenv("GITHUB_BASE_REF", "faster-sums")
    assert revision(tmp_path).branch == "7/merge", "a fork's branch of the same name is another branch"
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(tmp_path)], check=True)
    assert revision(tmp_path).branch == "trunk"
    monkeypatch.setenv("OPGAUGE_BRANCH", "named")
    assert revision(tmp_path).branch == "named"


def test_a_checkout_without_installation_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """`opgauge version` says so, where Python's own function raises."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert version_text() == "opgauge, not installed"
