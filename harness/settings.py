"""Settings from the environment (`OPGAUGE_…`) and `.env`-free defaults; the only reader of `os.environ`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

ROOT = Path(__file__).parent.parent
THREAD_VARIABLES = (
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


def child_environment(threads: int | None = None) -> dict[str, str]:
    """The environment of a worker: it finds this harness, and uses `threads` threads."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([path] if path else [])])
    # one compiling process: a pool of its own would outlive the worker and disturb what is timed
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if threads is not None:
        environment.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return environment
