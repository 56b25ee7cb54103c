"""Faults of a trial: exceptions that are no fault of the harness, and the results that they become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opgauge.harness.project import active
from opgauge.harness.result.result import REFERENCE_FAILED, Status
from opgauge.harness.worker.attempt import KernelFailedError, WrongError
from opgauge.ops import (
    BackendError,
    KernelNotFoundError,
)


class ReferenceFailedError(Exception):
    """The op's own reference, bound or derivation raised, for which no kernel is at fault."""


FAULTS = (WrongError, ReferenceFailedError, KernelNotFoundError, BackendError, KernelFailedError, MemoryError)
"""Exceptions of a trial that are no fault of the harness."""


def fault_fields(error: Exception) -> dict[str, Any]:
    """Status and reason of an exception, as fields of a Result."""
    match error:
        case WrongError():
            return {"status": Status.WRONG, "reason": str(error), "check": error.check}
        case ReferenceFailedError():
            cause = error.__cause__ or error
            return {"status": Status.ERROR, "reason": f"{REFERENCE_FAILED}: {cause!r}{active.code_place(cause)}"}
        case KernelFailedError():
            return {"status": error.status, "reason": str(error)}
        case MemoryError():
            return {"status": Status.OUT_OF_MEMORY, "reason": str(error) or "out of memory"}
        case _:
            return {"status": Status.UNSUPPORTED, "reason": str(error)}


@contextmanager
def blamed_on_op() -> Iterator[None]:
    """Attribute all exceptions within to the op rather than a kernel."""
    try:
        yield
    except MemoryError as error:
        msg = "inputs and reference do not fit into memory"
        raise MemoryError(msg) from error
    except Exception as error:
        raise ReferenceFailedError from error
