"""`opgauge config`: the configuration in force."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from opgauge.harness.cli.options import AsJson, case_paths, database_url, policy_file, waiver_file


def config(as_json: AsJson = False) -> None:
    """Show the project's configuration, with defaults filled in, and its files.

    Example: opgauge config
    """
    from opgauge.harness.project.active import active
    from opgauge.harness.project.configuration import entries
    from opgauge.harness.project.revision import project_name

    project = active()
    found: dict[str, Any] = {"file": None, "builtin": True} if project is None else entries(project)
    if project is not None:
        found["name"] = project.name or project_name(project.tree)
    found |= {
        "cases": case_paths(),
        "policy": policy_file(),
        "waivers": waiver_file(),
        "database": database_url(None),
    }
    if as_json:
        import json

        typer.echo(json.dumps({key: _plain(value) for key, value in found.items()}, indent=1))
        return
    for key, value in found.items():
        typer.echo(f"{key:10} {_text(value)}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(one)}" for key, one in value.items()) or "–"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "–"
    return "–" if value in {None, ""} else str(value)
