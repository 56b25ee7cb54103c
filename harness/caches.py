"""Folders of compilers' caches for hosts whose home folder is not writable."""

from __future__ import annotations

import os
from pathlib import Path

CACHES = {"NUMBA_CACHE_DIR": "numba", "TRITON_CACHE_DIR": "triton", "CUPY_CACHE_DIR": "cupy"}
"""Variables that name the cache folders of kernel compilers, and the folders used if the home folder is read-only."""


def caches_elsewhere() -> dict[str, str]:
    """Cache variables with their folders; empty if the home folder is writable."""
    home = Path("~").expanduser()  # stays `~` if no home folder is known
    if os.access(home, os.W_OK | os.X_OK):
        return {}
    from opgauge.ops._core.cache import cache_folder  # imports the ops, which most commands do not need

    return {name: str(cache_folder(part)) for name, part in CACHES.items()}
