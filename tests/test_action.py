"""The GitHub action and the workflow that uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
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


@pytest.mark.parametrize(("code", "allow", "ended"), [(0, "", 0), (1, "", 1), (4, "4,5", 0), (3, "4 5", 3), (5, "", 5)])
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
        ARGUMENTS="--changed\n--budget 60\n",
        ALLOW=allow,
        FOLDER=".",
        OUTPUT=str(tmp_path / "out $(touch x)"),
    )
    assert done.returncode == ended, done.stderr
    verdict = ("passed", "slower", "usage", "broken", "undecided", "nothing")[code]
    assert (tmp_path / "output").read_text() == f"exit-code={code}\nverdict={verdict}\ncounts={{}}\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:5] == ["-m", "opgauge", "gate", "--base", "HEAD"]
    assert asked[-5:] == ["--changed", "--budget", "60", "--device", "cuda:1"]
    assert not (tmp_path / "x").exists()
    reports = tmp_path / "out $(touch x)"
    assert json.loads((reports / "gate.json").read_text()) == {"code": code, "verdict": verdict, "base": "HEAD"}
    assert verdict in (reports / "gate.md").read_text()
    assert ET.parse(reports / "gate.xml").getroot().tag == "testsuites"  # noqa: S314  our own file
    assert verdict in (tmp_path / "summary").read_text()
    assert (reports / ".gitignore").read_text() == "*\n"


class Pushed:
    """A repository on a server: `main` has three commits, `topic` left it after the first and has two; and a merge."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server"
        self.path.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.main = [self.commit(f"main {number}") for number in range(3)]
        self.git("checkout", "-q", "-b", "topic", self.main[0])
        self.topic = [self.commit(f"topic {number}") for number in range(2)]
        self.git("checkout", "-q", "-b", "merged", "main")
        self.git("merge", "-q", "--no-ff", "-m", "merge", "topic")
        self.merged = self.git("rev-parse", "HEAD")
        self.git("checkout", "-q", "-b", "updated", "topic")
        self.git("merge", "-q", "--no-ff", "-m", "update", "main")
        self.updated = self.git("rev-parse", "HEAD")
        # a tag of a branch's name, elsewhere
        self.git("tag", "main", self.topic[1])

    def git(self, *arguments: str) -> str:
        """What git prints here."""
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *names, *arguments], cwd=self.path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, text: str) -> str:
        """A new commit with a file of its own."""
        (self.path / text.replace(" ", "_")).write_text(text)
        self.git("add", "--all")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")

    def clone(self, folder: Path, commit: str, depth: int) -> Path:
        """A checkout as a runner makes it: detached, of all history or of its last commits."""
        folder.mkdir()
        wanted = (f"--depth={depth}", "origin", commit) if depth else ("origin", "+refs/heads/*:refs/remotes/origin/*")
        for command in (
            ("init", "-q"),
            ("remote", "add", "origin", self.path.as_uri()),
            ("fetch", "-q", "--no-tags", *wanted),
            ("checkout", "-q", "--detach", commit),
        ):
            subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
        return folder


def evaluated(text: Any, known: dict[str, Any]) -> str:
    """A text with each `${{ a.b.c }}` replaced by the value at that path, or nothing where there is none."""

    def value(found: re.Match[str]) -> str:
        here: Any = known
        for part in found[1].split("."):
            here = here.get(part, "") if isinstance(here, dict) else ""
        return str(here)

    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, str(text))


def run_action(folder: Path, tmp_path: Path, event: dict[str, Any], **inputs: str) -> dict[str, str]:
    """Run the action's shell steps in order for an event, with a `python` that writes down what it is called with."""
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n')
    program.chmod(0o755)
    defaults = {name: one["default"] for name, one in action()["inputs"].items()}
    known: dict[str, Any] = {"github": {"event": event}, "inputs": {**defaults, **inputs}, "steps": {}}
    for step in action()["runs"]["steps"]:
        if "run" not in step:
            continue
        written = tmp_path / "output"
        written.write_text("")
        variables = {name: evaluated(text, known) for name, text in step.get("env", {}).items()}
        done = bash(
            step["run"],
            folder,
            **{**variables, "GITHUB_OUTPUT": str(written), "GITHUB_ACTION_PATH": str(ROOT)},
            PATH=f"{program.parent}:{os.environ['PATH']}",
        )
        assert done.returncode == 0, done.stderr
        outputs = dict(line.split("=", 1) for line in written.read_text().splitlines())
        known["steps"][step.get("id", "")] = {"outputs": outputs}
    return {name: evaluated(one["value"], known) for name, one in action()["outputs"].items()}


NEW = "0" * 40
"""The commit that an event names where a branch is new."""


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("head", "wanted", "event"),
    [
        # the event's frozen base is older than the merge commit's
        ("merged", "main 2", {"pull_request": {"base": {"ref": "main", "sha": "main 1"}}}),
        # a branch itself, which ends with a merge of main
        ("updated", "main 2", {"pull_request": {"base": {"ref": "main"}, "head": {"sha": "updated"}}}),
        ("topic 1", "main 0", {"pull_request": {"base": {"ref": "main", "sha": "main 2"}}}),
        # the event's head is older than the branch that was checked out
        ("topic 1", "main 0", {"pull_request": {"base": {"ref": "main"}, "head": {"sha": "topic 0"}}}),
        (
            "main 2",
            "main 1",
            {"pull_request": {"base": {"ref": "main"}, "head": {"sha": "t"}, "merge_commit_sha": "main 2"}},
        ),
        ("main 2", "main 0", {"before": "main 0"}),
        ("topic 1", "main 0", {"before": NEW, "repository": {"default_branch": "main"}}),
        ("main 2", "main 1", {"before": NEW, "repository": {"default_branch": "main"}}),
        ("topic 1", "main 0", {"before": "f" * 40, "repository": {"default_branch": "main"}}),
        ("merged", "main 1", {"merge_group": {"base_sha": "main 1"}}),
        ("topic 1", "topic 0", {}),
    ],
    ids=[
        "merge commit",
        "updated branch",
        "pull request",
        "older event",
        "squashed",
        "push",
        "new branch",
        "new main",
        "forced push",
        "group",
        "schedule",
    ],
)
def test_its_steps_run_in_a_checkout_for_each_event(
    tmp_path: Path, head: str, wanted: str, event: dict[str, Any], depth: int
) -> None:
    """Installs the package, and gates with the right base for the event, in a full clone and in a shallow one."""
    server = Pushed(tmp_path)
    names = {f"main {number}": one for number, one in enumerate(server.main)}
    names |= {f"topic {number}": one for number, one in enumerate(server.topic)} | {
        "merged": server.merged,
        "updated": server.updated,
    }
    made = _with_commits(event, names)
    outputs = run_action(server.clone(tmp_path / "checkout", names[head], depth), tmp_path, made, extras="cuda13")
    assert outputs == {"exit-code": "0", "verdict": "passed", "counts": "{}", "base": names[wanted]}
    install, gate = (tmp_path / "called").read_text().splitlines()
    assert install.startswith("-m pip install")
    assert install.endswith(f"{ROOT}[cuda13]")
    assert gate.startswith(f"-m opgauge gate --base {names[wanted]} ")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("head", ["main", "merged"])
def test_a_checkout_without_the_pull_request_is_no_verdict_on_it(tmp_path: Path, head: str, depth: int) -> None:
    """`pull_request_target` checks out the target, which may end with a merge of another pull request."""
    server = Pushed(tmp_path)
    server.git("checkout", "-q", "main")
    server.git("reset", "-q", "--hard", head)
    tip = server.git("rev-parse", "HEAD")
    checkout = server.clone(tmp_path / "checkout", tip, depth)
    variables = {"GIVEN": "", "GROUP": "", "TARGET": "main", "TOPIC": "f" * 40, "MERGED": "e" * 40, "BEFORE": ""}
    done = bash(script("base"), checkout, **variables, DEFAULT="main", GITHUB_OUTPUT=str(tmp_path / "output"))
    assert done.returncode == 2
    assert done.stdout.startswith("::error::the checkout is of main, without the pull request;")


def _with_commits(value: Any, names: dict[str, str]) -> Any:
    """An event whose commits are named, with their hashes."""
    if isinstance(value, dict):
        return {key: _with_commits(one, names) for key, one in value.items()}
    return names.get(value, value)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_named_base_is_the_branch_of_the_server(tmp_path: Path, depth: int) -> None:
    """The input `base` goes before the event, and may name a branch that the clone lacks."""
    server = Pushed(tmp_path)
    checkout = server.clone(tmp_path / "checkout", server.topic[1], depth)
    assert run_action(checkout, tmp_path, {"before": server.topic[0]}, base="main")["base"] == server.main[2]


def test_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    """Exit code 1 would say slower."""
    done = bash(script("gate"), tmp_path, FOLDER="gone", OUTPUT="out", BASE="HEAD", ARGUMENTS="", DEVICE="", ALLOW="")
    assert done.returncode == 2
    assert json.loads((tmp_path / "out" / "gate.json").read_text())["verdict"] == "usage"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing_in_the_scripts() -> None:
    """Scripts of the GitHub action and of the GitLab jobs."""
    scripts = {f"{step['name']}": ("bash", step["run"]) for step in action()["runs"]["steps"] if "run" in step}
    jobs = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())
    scripts |= {name: ("sh", "\n".join(job["script"])) for name, job in jobs.items() if "script" in job}
    assert len(scripts) == 5
    for name, (shell, text) in scripts.items():
        # arguments are meant to be split; variables come from `env`
        command = ["shellcheck", "--shell", shell, "--exclude", "SC2086,SC2153,SC2154", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout}"


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


COMMENTING = """
const calls = []
const comment = name => async given => calls.push([name, given.issue_number ?? given.comment_id, given.body.length])
const context = {repo: {}, payload: {repository: {id: 1}, workflow_run: {head_sha: 'a', head_repository: {id: 2},
  pull_requests: [{number: 5, base: {repo: {id: 3}}}, {number: 7, base: {repo: {id: 1}}}]}}}
const github = {paginate: async () => [{body: null, user: null}],
  rest: {pulls: {}, issues: {createComment: comment('create'), updateComment: comment('update')}}}
"""
"""What actions/github-script gives a script: a run of a pull request here, which is one of a fork too."""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("report", "called"),
    [(None, None), ("slower", [["create", 7, 28]]), ("@" * 60_000, [["create", 7, 60_022]])],
    ids=["link", "short", "mentions"],
)
def test_the_comment_survives_what_a_report_says(tmp_path: Path, report: str | None, called: Any) -> None:
    """No link out of the report is followed, none is too long for GitHub, and it is the comment of this repository."""
    (tmp_path / "report").mkdir()
    file = tmp_path / "report" / "gate.md"
    file.symlink_to("/proc/self/environ") if report is None else file.write_text(report)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "gate-comment.yml").read_text())
    text = workflow["jobs"]["comment"]["steps"][-1]["with"]["script"]
    program = f"{COMMENTING}\n;(async () => {{\n{text}\nconsole.log(JSON.stringify(calls)) }})()"
    done = subprocess.run(["node", "-e", program], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert bool(done.returncode) == (report is None), done.stderr
    assert called is None or json.loads(done.stdout) == called
