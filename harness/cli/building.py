"""Build and import of the project's ops, before a verb that needs them and after its options are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

NEEDS_OPS = ("list", "check", "compile", "run", "explore", "tune", "schema", "agree", "doctor")
"""Verbs for which this process imports the project's ops; others leave that to their workers, or need none."""

NEEDS_BUILD = ("compile", "run", "explore", "tune", "agree")
"""Verbs that run kernels of the project's tree, and build it first; `gate`, `aa` and `inject` build by themselves."""


class Verb(TyperCommand):
    """A verb whose words are parsed before anything is built: help and a misspelt option need no kernels."""

    def invoke(self, ctx: Any) -> Any:
        """Build and import what the verb needs, then run it."""
        from opgauge.harness.errors import TreeError
        from opgauge.harness.project import active

        if ctx.info_name in NEEDS_BUILD:
            build(quiet=bool(ctx.params.get("quiet")))
        if ctx.info_name in NEEDS_OPS:
            try:
                active.load()
            except TreeError as error:
                if ctx.info_name in NEEDS_BUILD or not active.build_command():
                    raise
                msg = (
                    f"{error}; if it is not built yet: `opgauge compile`, `run` and `gate` run the build command first"
                )
                raise TreeError(msg) from error
        return super().invoke(ctx)


def build_head(tree: Path) -> None:
    """Build the head of a gate; raises HeadError if that fails."""
    from opgauge.harness.errors import HeadError, TreeError

    try:
        build(tree)
    except TreeError as error:
        raise HeadError(str(error)) from error


def build(tree: Path | None = None, *, quiet: bool = False) -> None:
    """Build the active project in its tree, or in another checkout, and say so; raises TreeError if it fails."""
    from opgauge.harness.project import active

    command = active.build_command(tree)
    if command and not quiet:
        typer.echo(f"building: {command}" + (f" (in {tree})" if tree else ""), err=True)
    active.build(tree)
