"""Libraries in C, compiled for cheats."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path


def compiled(text: str) -> ctypes.CDLL:
    """The library of a source in C."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "cheat.c", Path(folder) / "cheat.so"
        source.write_text(text, encoding="ascii")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", source, "-o", target, "-lm"], check=True)
        return ctypes.CDLL(str(target))
