"""`opgauge version`: name and version."""

from __future__ import annotations

import typer


def version_text() -> str:
    """Name and version of the installed package."""
    from importlib.metadata import version as installed

    return f"opgauge {installed('opgauge')}"


def version() -> None:
    """Print the version.

    Example: opgauge version
    """
    typer.echo(version_text())
