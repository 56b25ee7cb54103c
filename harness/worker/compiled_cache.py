"""Cache of compiled Numba kernels that the two trees of a gate, and later gates, share by the content of the sources.

Numba's own cache checks the file of a kernel, and not the files of the functions that it inlines; it also misses as
soon as a tree has another path. Here the folder of a kernel is named by the digest of all Python sources that it may
inline: those of its op's folder and of the shared folders of `ops`. Sources in other places are left to Numba.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from numba.core.caching import IndexDataCacheFile, UserProvidedCacheLocator

from opgauge.harness.caches import COMPILED
from opgauge.ops._core.cache import cache_folder

_numbered = IndexDataCacheFile._data_name  # noqa: SLF001
# `ops._cpu.jit` does so too, and says why: older trees do not
IndexDataCacheFile._data_name = lambda self, number: f"{os.getpid()}-{_numbered(self, number)}"  # noqa: SLF001


class ContentCacheLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Locator of Numba's cache for kernels of `ops`."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        """A locator for a function in a file of `ops`, else None."""
        root, file = _root(), Path(py_file).resolve()
        if root is None or not file.is_file() or not file.is_relative_to(root):
            return None
        found = cls(py_func, py_file)
        inner = file.relative_to(root).with_suffix("")
        folder = cache_folder(COMPILED) / digest(root, inner.parts[0])
        found._cache_path = str(folder.joinpath(*inner.parts))
        try:
            found.ensure_cache_path()
            os.utime(folder)
        except OSError:
            return None
        return found


@cache
def digest(root: Path, name: str) -> str:
    """Digest of the Python sources that a kernel in a folder or file `name` of `ops` may inline."""
    folders = [*sorted(root.glob("_*/")), *([root / name] if (root / name).is_dir() else [])]
    files = [*sorted(root.glob("*.py")), *(file for folder in folders for file in sorted(folder.rglob("*.py")))]
    found = sha256()
    for file in files:
        content = file.read_bytes()
        found.update(f"{file.relative_to(root)} {len(content)} ".encode() + content)
    return found.hexdigest()[:32]


def _root() -> Path | None:
    """Folder of the imported `ops`."""
    module = sys.modules.get("opgauge.ops")
    return Path(module.__path__[0]).resolve() if module is not None else None
