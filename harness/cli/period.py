"""Options `--last` and `--since`: the beginning of a period of runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

UNITS = {"h": "hours", "d": "days", "w": "weeks"}
"""Units of `--last`."""
_LENGTH = re.compile(r"(\d{1,5})([hdw])")

Last = Annotated[str | None, typer.Option("--last", metavar="LENGTH", help="Only runs of the last 12h, 30d, 6w.")]
Since = Annotated[str | None, typer.Option("--since", metavar="DATE", help="Only runs since 2026-01-31 (UTC).")]


def period_start(last: str | None, since: str | None, *, now: datetime | None = None) -> datetime | None:
    """The instant from which runs count; None for all. If both are given, the later one counts.

    Raises typer.BadParameter for an invalid length or date.
    """
    starts = [*([] if last is None else [_ago(last, now)]), *([] if since is None else [_date(since)])]
    return max(starts, default=None)


def _ago(text: str, now: datetime | None) -> datetime:
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is not a length of time; write 12h, 30d or 6w"
        raise typer.BadParameter(msg, param_hint="--last")
    return (now or datetime.now(UTC)) - timedelta(**{UNITS[found[2]]: int(found[1])})


def _date(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        msg = f"{text!r} is not a date; write 2026-01-31 or 2026-01-31T12:00"
        raise typer.BadParameter(msg, param_hint="--since") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
