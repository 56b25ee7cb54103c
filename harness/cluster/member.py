"""Functions that run in a cluster's member process: whole cases on its device, references on its CPUs.

A member owns one device (`CUDA_VISIBLE_DEVICES` names it) and measures one case at a time, in a child process of its
own, as `opgauge run` does: a kernel that crashes ends that child, not the member.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from opgauge.harness.case.casejson import case_from_json
from opgauge.harness.errors import HarnessError
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Trial, from_json, to_json
from opgauge.harness.run.environment import capture
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.settings import ROOT
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.kept import is_kept, keep_expected, keep_values
from opgauge.harness.worker.verify import expect

Json = Mapping[str, Any]
SUFFIXES = (".py", ".cu", ".cuh")
"""Suffixes of the files in the digest."""
FOLDERS = ("harness", "ops")
"""Folders of the files in the digest."""


class VersionMismatchError(HarnessError):
    """A member of the cluster runs other code than the planning process."""

    exit_code = 2


@cache
def code_digest() -> str:
    """A digest of this process's own harness and ops; members with another one would measure other code."""
    total = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def identity(device: str) -> dict[str, Any]:
    """Host, process, code and environment of this member, as plain JSON."""
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "code": code_digest(),
        "environment": _environment(device),
    }


def run_case(
    trials: Sequence[Json],
    limits: Json,
    code: str,
    *,
    timeout_s: float = 120.0,
    shared: bool = True,
    ceilings: bool = False,
) -> dict[str, Any]:
    """Results of a case's trials, one after the other on this member's device, with `identity`.

    code: digest of the planning process's code. shared: read inputs and reference from this host's folder, if
    `compute_reference` has written them. ceilings: measure the device's achieved peaks too. Raises
    VersionMismatchError if the code differs.
    """
    if code != code_digest():
        msg = f"{socket.gethostname()} runs code {code_digest()}, the planning process {code}: install the same version"
        raise VersionMismatchError(msg)
    executor = _executor(timeout_s)
    executor.limits = from_json(Limits, limits)
    more = {"kept": str(shared_folder())} if shared else {}
    built = [from_json(Trial, trial) for trial in trials]
    results = [to_json(result) for result in executor.run(built, ask=lambda _: more)]
    _forget(built[0].case.id)
    reached = to_json(executor.ceilings(built[0].device)) if ceilings else None
    return {"results": results, "ceilings": reached, **identity(built[0].device)}


def compute_reference(case: Json) -> bool:
    """Write inputs and reference of a case to this host's folder; returns whether they are there.

    A reference that fails here fails again when the case is measured, which reports it.
    """
    built, folder = case_from_json(case), shared_folder()
    with suppress(MemoryError, ArithmeticError, ValueError, OSError):
        if not is_kept(built, folder):
            inputs = make_inputs(built)
            keep_values(built, inputs.values, folder)
            keep_expected(built, expect(built, inputs, threads=1), folder)
    return is_kept(built, folder)


def shared_folder() -> Path:
    """The folder of inputs and references that members of this host share, private to this user."""
    folder = Path(tempfile.gettempdir()) / f"opgauge-cluster-{os.getuid()}-{code_digest()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@cache
def _executor(timeout_s: float) -> LocalExecutor:
    return LocalExecutor(timeout_s=timeout_s)


def close(timeout_s: float = 120.0) -> None:
    """End the child process in which cases run; the next case starts another."""
    _executor(timeout_s).close()


@cache
def _environment(device: str) -> dict[str, Any]:
    return to_json(capture([device]))


def _forget(case: str) -> None:
    for file in shared_folder().glob(f"{case}*"):
        file.unlink(missing_ok=True)
