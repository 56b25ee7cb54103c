"""Values kept on disk for later processes: inputs of cases, and references that are needed often.

Their files are named by the code that makes them too, so that processes on two trees share what is the same in both.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.worker.verify import Expected, judged_by
from opgauge.ops import dtype_info
from opgauge.ops._core.op import Array

REFERENCE = ".npz"
"""Suffix of the files of references."""
CODE_DIGITS = 16
"""Digits of the digest of the code in the names of files."""


def keep_values(case: Case, values: Mapping[str, Array], folder: Path) -> None:
    """Store the inputs of `case` for later processes; a full disk only makes those slower."""
    for name, value in values.items():
        _write(_kept(case, f"-{name}.bin", folder), value.reshape(-1).view(np.uint8).tofile)


def recall_values(case: Case, folder: Path) -> dict[str, Array] | None:
    """The stored inputs of `case`; None if they are missing or incomplete."""
    values = {}
    for name, spec in case.resolved.inputs.items():
        file, dtype = _kept(case, f"-{name}.bin", folder), dtype_info(spec.dtype).numpy
        if not file.is_file() or file.stat().st_size != spec.size * dtype.itemsize:
            return None
        # mapped, not read: a GPU copies it from the page cache directly
        raw = np.asarray(np.memmap(file, np.uint8, "r")) if spec.size else np.empty(0, np.uint8)
        values[name] = raw.view(dtype).reshape(spec.shape)
    return values


def keep_expected(case: Case, expected: Expected, folder: Path) -> None:
    """Store the reference of `case` for later processes, for kernels whose bits differ between calls."""
    arrays = {f"values {name}": value for name, value in expected.values.items()}
    arrays |= {f"bounds {name}": np.asarray(bound) for name, bound in expected.bounds.items()}

    def save(file: Path) -> None:
        with file.open("wb") as opened:
            np.savez(opened, allow_pickle=False, **arrays)

    _write(_kept(case, REFERENCE, folder), save)


def is_kept(case: Case, folder: Path) -> bool:
    """Whether the reference of `case` is stored."""
    return _kept(case, REFERENCE, folder).is_file()


def recall_expected(case: Case, folder: Path) -> Expected | None:
    """The stored reference of `case`; None without one."""
    try:
        with np.load(_kept(case, REFERENCE, folder)) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None
    parts: dict[str, dict[str, Array]] = {"values": {}, "bounds": {}}
    for name, array in found.items():
        part, _, output = name.partition(" ")
        parts[part][output] = array
    return Expected(case.resolved.outputs, parts["values"], parts["bounds"])


def forget_values(folder: Path) -> None:
    """Remove inputs, which are large; references stay."""
    for file in folder.glob("*/*.bin"):
        file.unlink(missing_ok=True)


def _write(target: Path, write: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".part{os.getpid()}")
    try:
        write(part)
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)


def _kept(case: Case, end: str, folder: Path) -> Path:
    return folder / f"{case.id}-{judged_by(case.op)[:CODE_DIGITS]}{end}"
