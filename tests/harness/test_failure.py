"""What a kernel's exception, or the end of its process, means."""

from __future__ import annotations

import signal

import pytest

from opgauge.harness.result.failure import LONGEST, classify, classify_death
from opgauge.harness.result.result import Status
from opgauge.ops import AxisError, BackendError, CompileError, DtypeError, ShapeError


class OutOfMemoryError(RuntimeError):
    """As torch's: not a MemoryError, but called so."""


class InvalidCxxCompiler(RuntimeError):  # noqa: N818  torch's name
    """As torch's, when there is no C++ compiler."""


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("a\n  b"), Status.ERROR, "ValueError: a b"),
        (ValueError(), Status.ERROR, "ValueError"),
        (CompileError("line 3"), Status.ERROR, "CompileError: line 3"),
        (MemoryError(), Status.OUT_OF_MEMORY, "MemoryError"),
        (OutOfMemoryError("8 GiB"), Status.OUT_OF_MEMORY, "OutOfMemoryError: 8 GiB"),
        (NotImplementedError("no complex"), Status.UNSUPPORTED, "no complex"),
        (NotImplementedError(), Status.UNSUPPORTED, "NotImplementedError"),
        (BackendError("no CuPy"), Status.UNSUPPORTED, "no CuPy"),
        (DtypeError("no bfloat16"), Status.UNSUPPORTED, "no bfloat16"),
        (AxisError("three groups"), Status.UNSUPPORTED, "three groups"),
        (ShapeError("no strides"), Status.UNSUPPORTED, "no strides"),
        (ModuleNotFoundError("No module named 'torch'"), Status.UNSUPPORTED, "No module named 'torch'"),
    ],
)
def test_what_an_exception_means(error: Exception, status: Status, reason: str) -> None:
    """Refusals are unsupported, memory is memory, everything else is an error; in one line."""
    assert classify(error) == (status, reason)


def test_a_missing_compiler_is_found_down_the_chain() -> None:
    """torch.compile wraps the error about the compiler; the chain is searched."""
    error = RuntimeError("backend raised")
    error.__cause__ = InvalidCxxCompiler("No working C++ compiler found")
    assert classify(error) == (Status.UNSUPPORTED, "torch.compile needs a C++ compiler, and finds none")


def test_a_text_that_no_database_takes_is_cut_to_what_they_take() -> None:
    """Lone surrogates and zero bytes become question marks."""
    assert classify(ValueError("bad \udc80 \0 text")) == (Status.ERROR, "ValueError: bad ? ? text")


def test_an_exception_without_text_is_named() -> None:
    """Its own method may fail."""
    mute = type("Mute", (Exception,), {"__str__": lambda _: 1 / 0})
    assert classify(mute()) == (Status.ERROR, "Mute")


def test_reasons_are_not_endless() -> None:
    """A compiler's log of a megabyte is cut."""
    assert len(classify(ValueError("x" * 10**6))[1]) <= LONGEST


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (0, Status.ERROR, "exit code 0"),
        (3, Status.ERROR, "exit code 3"),
        (-signal.SIGSEGV, Status.ERROR, "SIGSEGV"),
        (-signal.SIGABRT, Status.ERROR, "SIGABRT"),
        (-signal.SIGKILL, Status.OUT_OF_MEMORY, "out of memory"),
    ],
)
def test_what_the_end_of_a_process_means(code: int, status: Status, words: str) -> None:
    """SIGKILL from outside is taken for the system running out of memory; all else is an error."""
    found, reason = classify_death(code)
    assert found is status
    assert words in reason
