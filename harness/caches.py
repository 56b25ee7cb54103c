"""Folders of compilers' caches: for hosts whose home folder is not writable, and of kernels cached by content."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from time import time

CACHES = {"NUMBA_CACHE_DIR": "numba", "TRITON_CACHE_DIR": "triton", "CUPY_CACHE_DIR": "cupy"}
"""Variables that name the cache folders of kernel compilers, and the folders used if the home folder is read-only."""
COMPILED = "compiled"
"""Name of the folder of compiled Numba code, below the user's cache folder; its folders are named by content."""
CACHED_BY_CONTENT = {
    "NUMBA_CACHE_LOCATOR_CLASSES": "opgauge.harness.worker.compiled_cache.ContentCacheLocator,UserProvidedCacheLocator,"
    "InTreeCacheLocator,UserWideCacheLocator"
}
"""Environment of processes that use that folder; versions of Numba that do not know the variable ignore it."""
KEPT_S = 30 * 86_400
"""Seconds after its last use when compiled code is removed."""


def caches_elsewhere() -> dict[str, str]:
    """Cache variables with their folders; empty if the home folder is writable."""
    home = Path("~").expanduser()  # stays `~` if no home folder is known
    if os.access(home, os.W_OK | os.X_OK):
        return {}
    from opgauge.ops._core.cache import cache_folder  # imports the ops, which most commands do not need

    return {name: str(cache_folder(part)) for name, part in CACHES.items()}


def remove_unused() -> None:
    """Remove code that was compiled for sources not used lately."""
    from opgauge.ops._core.cache import cache_folder

    oldest = time() - KEPT_S
    for folder in cache_folder(COMPILED).iterdir():
        with suppress(OSError):
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder)
