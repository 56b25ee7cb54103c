"""The GitLab job that runs the gate."""

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


def bash(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner does."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("known", [True, False])
def test_gitlab_reports_a_base_that_git_does_not_know(tmp_path: Path, known: bool) -> None:
    """The script goes on to the gate, which writes the reason into the reports; else the job leaves nothing."""
    git = "git -c user.name=a -c user.email=a@example.org"
    made = bash(f"git init -q . && {git} commit -q --allow-empty -m one && git rev-parse HEAD", tmp_path)
    lines = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())["opgauge-gate"]["script"]
    head = made.stdout.strip()
    text = "\n".join(line for line in lines if "pip install" not in line).replace("python -m opgauge", "echo opgauge")
    done = bash(text, tmp_path, CI_MERGE_REQUEST_DIFF_BASE_SHA=head if known else "0" * 39 + "1")
    assert done.returncode == 0, done.stderr
    assert f"gate --base {head if known else '0' * 39 + '1'} " in done.stdout
    assert "gate --base unknown " in bash(text, tmp_path).stdout


def test_gitlab_gives_options_that_there_are() -> None:
    """Every option in the GitLab job is one of `opgauge gate`, and reports are kept whatever the verdict is."""
    jobs = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())
    command: Any = typer.main.get_command(app)
    known = {name for option in command.commands["gate"].params for name in option.opts}
    (line,) = (line for line in jobs["opgauge-gate"]["script"] if "opgauge gate" in line)
    assert {word for word in line.split() if word.startswith("--")} <= known
    assert jobs["opgauge-gate"]["artifacts"]["when"] == "always"
