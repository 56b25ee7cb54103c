"""The GitHub action and the workflow that uses it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer.main
import yaml
from opgauge.harness.cli import app

ROOT = Path(__file__).parent.parent


def action() -> dict[str, Any]:
    """action.yml."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def script(name: str) -> str:
    """What a step runs."""
    (found,) = (step["run"] for step in action()["runs"]["steps"] if step.get("id") == name)
    return str(found)


def bash(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as Actions does."""
    environment = {**os.environ, "GITHUB_OUTPUT": str(folder / "output"), **variables}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        env=environment,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("code", "allow", "ended"), [(0, "", 0), (1, "", 1), (4, "4 5", 0), (3, "4 5", 3), (5, "", 5)])
def test_the_step_ends_as_the_gate_does(tmp_path: Path, code: int, allow: str, ended: int) -> None:
    """The gate's exit code is the step's and an output of it, save for codes that are allowed; reports are there."""
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >{tmp_path}/asked\nexit {code}\n')
    program.chmod(0o755)
    done = bash(
        script("gate"),
        tmp_path,
        PATH=f"{program.parent}:{os.environ['PATH']}",
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
        BASE="HEAD",
        DEVICE="cuda:1",
        ARGUMENTS="--changed --budget 60",
        ALLOW=allow,
        FOLDER=".",
        OUTPUT=str(tmp_path / "out $(touch x)"),
    )
    assert done.returncode == ended, done.stderr
    verdict = ("passed", "slower", "usage", "broken", "undecided", "nothing")[code]
    assert (tmp_path / "output").read_text() == f"exit-code={code}\nverdict={verdict}\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:5] == ["-m", "opgauge", "gate", "--base", "HEAD"]
    assert asked[-5:] == ["--changed", "--budget", "60", "--device", "cuda:1"]
    assert not (tmp_path / "x").exists()
    reports = tmp_path / "out $(touch x)"
    assert json.loads((reports / "gate.json").read_text()) == {"code": code, "verdict": verdict, "base": "HEAD"}
    assert verdict in (reports / "gate.md").read_text()
    assert ET.parse(reports / "gate.xml").getroot().tag == "testsuites"  # noqa: S314  our own file
    assert verdict in (tmp_path / "summary").read_text()


def test_the_base_is_what_the_change_began_from(tmp_path: Path) -> None:
    """A merge commit's first parent, a merge group's base, what a push began from, a name, or the commit before."""
    made = tmp_path / "repository"
    made.mkdir()

    def git(*arguments: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *names, *arguments], cwd=made, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    commits = []
    for number in range(3):
        git("commit", "-q", "--allow-empty", "-m", str(number))
        commits.append(git("rev-parse", "HEAD"))
    git("checkout", "-q", "-b", "topic", commits[0])
    git("commit", "-q", "--allow-empty", "-m", "topic")

    def base(**variables: str) -> str:
        empty = dict.fromkeys(("GIVEN", "GROUP", "TARGET", "BEFORE"), "")
        done = bash(script("base"), made, **{**empty, **variables})
        assert done.returncode == 0, done.stderr
        return (made / "output").read_text().splitlines()[-1].removeprefix("base=")

    assert base() == commits[0]
    assert base(GIVEN="main") == commits[2]
    assert base(GROUP=commits[1]) == commits[1]
    assert base(BEFORE="0" * 40) == commits[0]
    assert base(BEFORE=commits[1]) == commits[1]
    git("merge", "-q", "--no-ff", "-m", "merge", "main")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "pull request", "topic")
    assert base(TARGET="main") == commits[2]


def test_its_options_are_the_commands() -> None:
    """Every option that the action gives is one of `opgauge gate`."""
    command: Any = typer.main.get_command(app)
    known = {name for option in command.commands["gate"].params for name in option.opts}
    used = {word for word in script("gate").replace('"', " ").split() if word.startswith("--")}
    used |= {word for word in action()["inputs"]["arguments"]["default"].split() if word.startswith("--")}
    assert used <= known


def test_nothing_of_a_pull_request_is_pasted_into_a_script() -> None:
    """Expressions stand in `env` alone, where a shell does not read them."""
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_the_workflow_gives_what_the_action_takes() -> None:
    """The example uses the action of this repository, with inputs that it has, and the whole history."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    (used,) = (step for step in steps if step["uses"] == "./")
    assert set(used["with"]) <= set(action()["inputs"])
    assert steps[0]["with"]["fetch-depth"] == 0


def test_the_comment_never_runs_code_of_the_change() -> None:
    """The privileged workflow checks nothing out, and takes the pull request's number from the event."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "gate-comment.yml").read_text())
    steps = workflow["jobs"]["comment"]["steps"]
    assert not any("checkout" in step["uses"] for step in steps)
    assert all("run" not in step for step in steps)
    assert "${{" not in steps[-1]["with"]["script"]


def test_gitlab_gives_options_that_there_are() -> None:
    """Every option in the GitLab job is one of `opgauge gate`, and reports are kept whatever the verdict is."""
    jobs = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())
    command: Any = typer.main.get_command(app)
    known = {name for option in command.commands["gate"].params for name in option.opts}
    (line,) = (line for line in jobs["opgauge-gate"]["script"] if "opgauge gate" in line)
    assert {word for word in line.split() if word.startswith("--")} <= known
    assert jobs["opgauge-gate"]["artifacts"]["when"] == "always"
