"""Settings from environment variables; this is the only file that reads them.

A plain dataclass: pydantic-settings takes a quarter of a second to import, a sixth of
what `opgauge run` of one small case may take.
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
"""Folder to import `opgauge` from."""
THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
WORKER_ORDERS = "OPGAUGE_WORKER"


@dataclass(frozen=True)
class Settings:
    """What the environment may set.

    database: URL, `OPGAUGE_DB`. budget_s: seconds of sampling per trial, `OPGAUGE_BUDGET_S`.
    timeout_s: seconds that a kernel may take in all, `OPGAUGE_TIMEOUT_S`. threads: CPUs
    that workers use, `OPGAUGE_THREADS`; None for all. memory_bytes: address space of a
    worker, `OPGAUGE_MEMORY_BYTES`; None for no limit. commit: what is measured, `OPGAUGE_COMMIT`,
    for a tree without git. branch: what runs are recorded under, `OPGAUGE_BRANCH`, where git and CI
    do not know. token: what `opgauge push` shows to the service, `OPGAUGE_TOKEN`.
    tuning: file of launch parameters that goes before the shipped ones, `OPGAUGE_TUNING`.
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


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `environment` (the process's own when None); raises SettingsError."""
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
    )


def tuning_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """The file of launch parameters that `OPGAUGE_TUNING` names, if it names one."""
    given = os.environ if environment is None else environment
    named = given.get("OPGAUGE_TUNING")
    return Path(named) if named else None


def named_database(environment: Mapping[str, str] | None = None) -> str:
    """The database that `OPGAUGE_DB` names; empty where it names none."""
    given = os.environ if environment is None else environment
    return given.get("OPGAUGE_DB", "")


def configuration_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """The project configuration that `OPGAUGE_CONFIG` names, if it names one."""
    given = os.environ if environment is None else environment
    named = given.get("OPGAUGE_CONFIG")
    return Path(named) if named else None


@dataclass(frozen=True)
class Actions:
    """GitHub Actions, where this runs in it. summary: file of the step summary. branch: what is being tested."""

    summary: Path | None = None
    branch: str = ""


def load_actions(environment: Mapping[str, str] | None = None) -> Actions | None:
    """What GitHub Actions says; None elsewhere."""
    given = os.environ if environment is None else environment
    if given.get("GITHUB_ACTIONS") != "true":
        return None
    summary = given.get("GITHUB_STEP_SUMMARY")
    return Actions(Path(summary) if summary else None, given.get("GITHUB_HEAD_REF") or given.get("GITHUB_REF_NAME", ""))


def program_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of another program: this process's, with `variables` besides."""
    return {**os.environ, **variables}


def child_environment(threads: int | None = None) -> dict[str, str]:
    """The environment of a worker: it finds this harness, and uses `threads` threads."""
    environment = dict(os.environ)
    # kernels under test have no business with it
    environment.pop("OPGAUGE_TOKEN", None)
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([IMPORT_PATH, *([path] if path else [])])
    # one compiling process: a pool of them would outlive the worker and disturb what is timed
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # OpenMP's idle threads spin for milliseconds by default, and take the cores from a BLAS that comes next
    environment.setdefault("GOMP_SPINCOUNT", "10000")
    # OpenBLAS's spin for 2^28 cycles, a tenth of a second in which other implementations took twice their time
    environment.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
    from opgauge.harness.caches import caches_elsewhere  # asks the ops here, which a worker must not

    for variable, folder in caches_elsewhere().items():
        environment.setdefault(variable, folder)
    if threads is not None:
        environment.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return environment


def tell_workers(orders: str, metrics: Path) -> None:
    """Pass orders, and the folder of shared metrics, to the service's processes, which inherit the environment."""
    os.environ[WORKER_ORDERS] = orders
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)


def worker_orders() -> str:
    """What `tell_workers` left."""
    return os.environ[WORKER_ORDERS]


def visible_gpu(index: int) -> str:
    """What the driver calls the GPU that CUDA numbers `index`: its number or UUID."""
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
