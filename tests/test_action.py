"""The GitHub action and the workflow that uses it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from opgauge.harness.cli import app

ROOT = Path(__file__).parent.parent


def action() -> dict[str, Any]:
    """action.yml."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def gate_script() -> str:
    """What the gate's step runs."""
    (script,) = (step["run"] for step in action()["runs"]["steps"] if step.get("id") == "gate")
    return str(script)


@pytest.mark.parametrize(("code", "allow", "ended"), [(0, "", 0), (1, "", 1), (4, "4 5", 0), (3, "4 5", 3), (5, "", 5)])
def test_the_step_ends_as_the_gate_does(tmp_path: Path, code: int, allow: str, ended: int) -> None:
    """The gate's exit code is the step's and an output of it, save for codes that are allowed."""
    program = tmp_path / ".venv" / "bin" / "opgauge"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >{tmp_path}/asked\nexit {code}\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "GITHUB_ACTION_PATH": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "BASE": "HEAD",
        "DEVICE": "cuda:1",
        "ARGUMENTS": "--changed --budget 60",
        "ALLOW": allow,
        "OUTPUT": str(tmp_path / "out $(touch x)"),
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", gate_script()],
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == ended
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:3] == ["gate", "--base", "HEAD"]
    assert asked[-5:] == ["--changed", "--budget", "60", "--device", "cuda:1"]
    assert (tmp_path / "out $(touch x)").is_dir()
    assert not (tmp_path / "x").exists()


def test_its_options_are_the_commands() -> None:
    """Every option that the action gives is one of `opgauge gate`."""
    command: Any = typer.main.get_command(app)
    known = {name for option in command.commands["gate"].params for name in option.opts}
    used = {word for word in gate_script().replace('"', " ").split() if word.startswith("--")}
    used |= {word for word in action()["inputs"]["arguments"]["default"].split() if word.startswith("--")}
    assert used - {"--no-tags", "--depth=1"} <= known


def test_nothing_of_a_pull_request_is_pasted_into_a_script() -> None:
    """Expressions stand in `env` alone, where a shell does not read them."""
    for step in action()["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_the_workflow_gives_what_the_action_takes() -> None:
    """The example uses the action of this repository, with inputs that it has, and the whole history."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    (used,) = (step for step in steps if step["uses"] == "./")
    assert set(used["with"]) <= set(action()["inputs"])
    assert steps[0]["with"]["fetch-depth"] == 0
