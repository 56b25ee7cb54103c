"""Folders of compilers' caches for hosts whose home folder cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

CACHES = {"NUMBA_CACHE_DIR": "numba", "TRITON_CACHE_DIR": "triton", "CUPY_CACHE_DIR": "cupy"}
"""Variables that say where compilers of kernels cache, and the folders for them where the home folder is read-only."""


def caches_elsewhere() -> dict[str, str]:
    """Variables with folders of compilers' caches; none where the home folder can be written."""
    home = Path("~").expanduser()  # stays as it is where no home folder is known
    if os.access(home, os.W_OK | os.X_OK):
        return {}
    from opgauge.ops._core.cache import cache_folder  # imports the ops, which most commands need not wait for

    return {name: str(cache_folder(part)) for name, part in CACHES.items()}
