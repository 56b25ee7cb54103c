"""Settings come from environment variables and nowhere else."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from opgauge.harness.errors import SettingsError
from opgauge.harness.settings import (
    IMPORT_PATH,
    Settings,
    child_environment,
    huge_pages,
    load_settings,
    program_environment,
    visible_gpu,
)

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Linux's file about huge pages."""
ADVISED = """
from pathlib import Path
block = bytearray(64 << 20)
lines = Path("/proc/self/smaps").read_text().splitlines()
print([line for line in lines if line.startswith("VmFlags") and " hg" in line])
"""
"""Program that prints the flags of memory for which it has asked for huge pages."""


def test_nothing_set_gives_the_defaults() -> None:
    """An empty environment, or empty variables, leave every default."""
    assert load_settings({}) == Settings()
    assert load_settings({"OPGAUGE_DB": "", "OPGAUGE_THREADS": ""}) == Settings()


def test_every_setting_can_be_set() -> None:
    """Each variable sets its setting."""
    found = load_settings(
        {
            "OPGAUGE_DB": "sqlite:///x.db",
            "OPGAUGE_BUDGET_S": "0.25",
            "OPGAUGE_TIMEOUT_S": "9",
            "OPGAUGE_THREADS": "2",
            "OPGAUGE_MEMORY_BYTES": "1e9",
            "OPGAUGE_TOKEN": " opg_x\n",
            "OPGAUGE_TUNING": "mine.json",
        }
    )
    assert found == Settings("sqlite:///x.db", 0.25, 9.0, 2, 10**9, token="opg_x", tuning=Path("mine.json"))  # noqa: S106  it is none
    assert "opg_x" not in repr(found)


def test_workers_never_see_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels under test are other people's code."""
    monkeypatch.setenv("OPGAUGE_TOKEN", "opg_x")
    assert "OPGAUGE_TOKEN" not in child_environment()


@pytest.mark.parametrize(
    ("name", "text"),
    [("OPGAUGE_BUDGET_S", "soon"), ("OPGAUGE_TIMEOUT_S", "-1"), ("OPGAUGE_THREADS", "1.5"), ("OPGAUGE_THREADS", "inf")],
)
def test_nonsense_names_the_variable(name: str, text: str) -> None:
    """A value that cannot be is a usage error that names the variable and the value."""
    with pytest.raises(SettingsError, match=f"{name} should be .*{text}") as caught:
        load_settings({name: text})
    assert caught.value.exit_code == 2


def test_workers_find_this_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's path begins with this tree, and its threads are limited where asked."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert child_environment()["PYTHONPATH"].startswith(IMPORT_PATH)
    assert child_environment(2)["OMP_NUM_THREADS"] == "2"


def test_huge_pages_keep_the_user_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of glibc are joined by colons."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    assert huge_pages() == {"GLIBC_TUNABLES": "glibc.malloc.check=0:glibc.malloc.hugetlb=1"}
    monkeypatch.delenv("GLIBC_TUNABLES")
    assert huge_pages() == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@pytest.mark.skipif(not HUGE_PAGES.exists() or platform.libc_ver()[0] != "glibc", reason="no huge pages, or no glibc")
@pytest.mark.parametrize("advised", [False, True])
def test_large_blocks_are_in_huge_pages(advised: bool) -> None:
    """The name of glibc's setting is right."""
    environment = program_environment(huge_pages() if advised else {})
    done = subprocess.run([sys.executable, "-c", ADVISED], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip() != "[]") == advised


@pytest.mark.parametrize(("visible", "index", "name"), [("", 1, "1"), ("3,5", 1, "5"), ("GPU-ab, GPU-cd", 0, "GPU-ab")])
def test_gpus_may_be_renumbered(monkeypatch: pytest.MonkeyPatch, visible: str, index: int, name: str) -> None:
    """CUDA's numbers are those of CUDA_VISIBLE_DEVICES; the driver's own are not."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpu(index) == name


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OPENBLAS_THREAD_TIMEOUT"])
def test_idle_threads_of_a_worker_sleep_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one library would take the cores from the implementation measured next; who sets it knows better."""
    monkeypatch.delenv(name, raising=False)
    assert name in child_environment()
    monkeypatch.setenv(name, "7")
    assert child_environment()[name] == "7"
