"""Messages of the errors that a user can act on."""

from __future__ import annotations


def explain(error: Exception) -> tuple[str, int] | None:
    """Message and exit code of an error that a user can act on; None for a fault of opgauge."""
    from opgauge.harness.errors import HarnessError
    from opgauge.ops import OpError  # imported late, so that a worker can start meanwhile

    if isinstance(error, HarnessError | OpError):
        return str(error), getattr(error, "exit_code", 2)
    if type(error).__module__.startswith("sqlalchemy."):
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        return f"the database cannot be used: {reason}", 2
    if isinstance(error, OSError) and error.strerror:
        named = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{named}", 2
    return None
