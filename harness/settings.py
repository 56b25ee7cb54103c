"""Settings from environment variables; no other module reads the environment.

They are a plain dataclass: importing pydantic-settings takes a quarter of a second, a sixth of the time that `opgauge
run` needs for a small case.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import opgauge
from opgauge.harness.errors import SettingsError

ROOT = Path(__file__).resolve().parent.parent
"""The source tree; in an installation the folder of the package `opgauge`."""
IMPORT_PATH = str(Path(opgauge.__file__).resolve().parents[1])
"""Folder from which `opgauge` is importable."""
THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that set the thread count of Numba, OpenMP and BLAS libraries."""
ABOUT_REPOSITORY = frozenset(
    f"GIT_{name}" for name in ("DIR", "WORK_TREE", "COMMON_DIR", "INDEX_FILE", "OBJECT_DIRECTORY", "PREFIX")
)
"""Variables by which git's hooks and bisections name their repository: in another checkout they mislead git."""
WORKER_ORDERS = "OPGAUGE_WORKER"
"""Variable that passes settings to the service's processes."""


@dataclass(frozen=True)
class Settings:
    """Values that environment variables set.

    database: URL, `OPGAUGE_DB`. budget_s: seconds of sampling per trial, `OPGAUGE_BUDGET_S`. timeout_s: most
    seconds of a trial, `OPGAUGE_TIMEOUT_S`. threads: CPUs that workers use, `OPGAUGE_THREADS`; None for all.
    memory_bytes: address space of a worker, `OPGAUGE_MEMORY_BYTES`; None for no limit. commit: commit of a tree
    without git, `OPGAUGE_COMMIT`. branch: branch of stored runs where neither git nor CI names one,
    `OPGAUGE_BRANCH`. token: secret that `opgauge push` sends to the service, `OPGAUGE_TOKEN`. tuning: file of
    launch parameters that overrides the shipped ones, `OPGAUGE_TUNING`. scheduler: address of the cluster that the
    dashboard shows, `OPGAUGE_SCHEDULER`; empty for none.
    """

    database: str = "sqlite:///opgauge.db"
    budget_s: float = 0.4
    timeout_s: float = 120.0
    threads: int | None = None
    memory_bytes: int | None = None
    commit: str = ""
    branch: str = ""
    token: str = field(default="", repr=False)
    tuning: Path | None = None
    scheduler: str = ""


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `environment` (the process's own if None); raises SettingsError."""
    given = os.environ if environment is None else environment
    default = Settings()
    return Settings(
        database=given.get("OPGAUGE_DB") or default.database,
        budget_s=_positive(given, "OPGAUGE_BUDGET_S") or default.budget_s,
        timeout_s=_positive(given, "OPGAUGE_TIMEOUT_S") or default.timeout_s,
        threads=_whole(given, "OPGAUGE_THREADS"),
        memory_bytes=_whole(given, "OPGAUGE_MEMORY_BYTES"),
        commit=given.get("OPGAUGE_COMMIT", ""),
        branch=given.get("OPGAUGE_BRANCH", "").strip(),
        token=given.get("OPGAUGE_TOKEN", "").strip(),
        tuning=tuning_file(given),
        scheduler=given.get("OPGAUGE_SCHEDULER", "").strip(),
    )


def tuning_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """The file of launch parameters in `OPGAUGE_TUNING`, if set."""
    given = os.environ if environment is None else environment
    named = given.get("OPGAUGE_TUNING")
    return Path(named) if named else None


def named_database(environment: Mapping[str, str] | None = None) -> str:
    """The database in `OPGAUGE_DB`; empty if not set."""
    given = os.environ if environment is None else environment
    return given.get("OPGAUGE_DB", "")


def configuration_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """The project configuration in `OPGAUGE_CONFIG`, if set."""
    given = os.environ if environment is None else environment
    named = given.get("OPGAUGE_CONFIG")
    return Path(named) if named else None


@dataclass(frozen=True)
class Actions:
    """State of GitHub Actions. summary, output: its files of that name. branch: the branch under test."""

    summary: Path | None = None
    branch: str = ""
    output: Path | None = None


def load_actions(environment: Mapping[str, str] | None = None) -> Actions | None:
    """The state of GitHub Actions; None elsewhere."""
    given = os.environ if environment is None else environment
    if given.get("GITHUB_ACTIONS") != "true":
        return None
    summary, output = given.get("GITHUB_STEP_SUMMARY"), given.get("GITHUB_OUTPUT")
    branch, name = given.get("GITHUB_HEAD_REF"), given.get("GITHUB_REF_NAME", "")
    # a fork's branch may be called as the branch that it wants to change
    branch = name if branch in {None, "", given.get("GITHUB_BASE_REF")} else branch
    return Actions(Path(summary) if summary else None, branch or "", Path(output) if output else None)


def program_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of another program: this process's, with `variables` added and without `ABOUT_REPOSITORY`."""
    return {name: value for name, value in os.environ.items() if name not in ABOUT_REPOSITORY} | dict(variables)


def child_environment(threads: int | None = None) -> dict[str, str]:
    """The environment of a worker: it can import this harness, and uses `threads` threads."""
    environment = program_environment({})
    # kernels under test must not read the token
    environment.pop("OPGAUGE_TOKEN", None)
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([IMPORT_PATH, *([path] if path else [])])
    # one compiling process: a pool would outlive the worker and disturb timings
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # OpenMP's idle threads spin for milliseconds by default, and occupy the cores of the BLAS call that follows
    environment.setdefault("GOMP_SPINCOUNT", "10000")
    # OpenBLAS's threads spin for 2^28 cycles, 0.1 s, during which other implementations take twice their time
    environment.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
    from opgauge.harness.caches import caches_elsewhere  # imports this tree's ops, which a worker must not

    for variable, folder in caches_elsewhere().items():
        environment.setdefault(variable, folder)
    if threads is not None:
        environment.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return environment


def tuned_once() -> dict[str, str]:
    """Environment of processes that are compared: autotuned Triton kernels keep their choice, unless the user decides.

    Each process would tune anew otherwise, for seconds to minutes, and choose differently by chance.
    """
    variable = "TRITON_CACHE_AUTOTUNING"
    return {} if variable in os.environ else {variable: "1"}


def huge_pages() -> dict[str, str]:
    """Environment of processes for which glibc allocates in huge pages, beside the user's own settings of glibc.

    Small pages lie anywhere in memory, so that equal processes have other conflicts in the caches.
    """
    given = os.environ.get("GLIBC_TUNABLES", "")
    return {"GLIBC_TUNABLES": ":".join((*([given] if given else []), "glibc.malloc.hugetlb=1"))}


def tell_workers(orders: str, metrics: Path) -> None:
    """Pass settings and the folder of shared metrics to the service's processes, which inherit the environment."""
    os.environ[WORKER_ORDERS] = orders
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    # there is a process per core: idle threads of BLAS spin, at the cost of the other processes
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")


def worker_orders() -> str:
    """The settings that `tell_workers` stored."""
    return os.environ[WORKER_ORDERS]


def visible_gpu(index: int) -> str:
    """The driver's name of the GPU that CUDA numbers `index`: its number or UUID."""
    listed = [item.strip() for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item.strip()]
    return listed[index] if index < len(listed) else str(index)


def _positive(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        msg = f"{name} should be a positive number, not {text!r}"
        raise SettingsError(msg)
    return value


def _whole(given: Mapping[str, str], name: str) -> int | None:
    value = _positive(given, name)
    if value is not None and not value.is_integer():
        msg = f"{name} should be a whole number, not {given[name]!r}"
        raise SettingsError(msg)
    return None if value is None else int(value)
