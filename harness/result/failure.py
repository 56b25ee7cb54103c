"""Classification of failures: an exception means unsupported, out of memory, or an error."""

from __future__ import annotations

import signal

from opgauge.harness.result.result import Status
from opgauge.ops import BackendError, DtypeError, KernelNotFoundError, ParameterError, ShapeError

REFUSALS = (
    BackendError,
    DtypeError,
    KernelNotFoundError,
    ModuleNotFoundError,
    NotImplementedError,
    ParameterError,
    ShapeError,
)
"""Exceptions that mean unsupported: the case is valid by the op's shape rule, so the kernel does not implement it."""
NO_COMPILER = ("InvalidCxxCompiler", "No working C++ compiler", "Failed to find C compiler")
"""Texts by which torch.compile reports that no C++ compiler is installed."""
LONGEST = 500
"""Most characters of a reason."""


def classify(error: BaseException) -> tuple[Status, str]:
    """Status and reason, in one line, of an exception that a kernel raised."""
    text = _text(error)
    reason = f"{type(error).__name__}: {text}"[:LONGEST].removesuffix(": ")
    if any(word in f"{type(item).__name__} {_text(item)}" for item in _chain(error) for word in NO_COMPILER):
        return Status.UNSUPPORTED, "torch.compile needs a C++ compiler, and finds none"
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return Status.OUT_OF_MEMORY, reason
    if isinstance(error, REFUSALS):
        return Status.UNSUPPORTED, text[:LONGEST] or type(error).__name__
    return Status.ERROR, reason


def _text(error: BaseException) -> str:
    """Text of an exception in one line, without what databases refuse; its own method may fail."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  whatever the method raises
        return ""
    printable = text.replace("\0", "?").encode("utf-8", "replace").decode("utf-8")
    return " ".join(printable.split())


def classify_death(exit_code: int) -> tuple[Status, str]:
    """Status and reason of a worker that ended by itself, from its exit code."""
    if exit_code >= 0:
        return Status.ERROR, f"ended the process with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    if -exit_code == signal.SIGKILL:
        return Status.OUT_OF_MEMORY, "killed from outside (SIGKILL), as the system does when it is out of memory"
    return Status.ERROR, f"crashed ({name})"


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
