"""`opgauge version`: name and version."""

from __future__ import annotations

import typer


def version_text() -> str:
    """Name and version of the installed package; a checkout on the import path has none."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return f"opgauge {installed('opgauge')}"
    except PackageNotFoundError:
        return "opgauge, not installed"


def version() -> None:
    """Print the version.

    Example: opgauge version
    """
    typer.echo(version_text())
