"""The GitLab job that runs the gate."""

from __future__ import annotations

import json
import os
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

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
    """The script goes on to the gate, which writes the reason into the reports; else the job leaves nothing.

    Its files are ignored: none counts as a change.
    """
    git = "git -c user.name=a -c user.email=a@example.org"
    made = bash(f"git init -q --template= . && {git} commit -q --allow-empty -m one && git rev-parse HEAD", tmp_path)
    lines = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())["opgauge-gate"]["script"]
    head = made.stdout.strip()
    text = "\n".join(line for line in lines if "pip install" not in line).replace("python -m opgauge", "echo opgauge")
    done = bash(text, tmp_path, CI_MERGE_REQUEST_DIFF_BASE_SHA=head if known else "0" * 39 + "1")
    assert done.returncode == 0, done.stderr
    assert f"gate --base {head if known else '0' * 39 + '1'} " in done.stdout
    assert "gate --base unknown " in bash(text, tmp_path).stdout
    (tmp_path / "opgauge-gate" / "gate.xml").write_text("")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "package").write_text("")
    assert bash("git ls-files --others --exclude-standard", tmp_path).stdout == ""


def test_gitlab_gives_options_that_there_are() -> None:
    """Every option in the GitLab job is one of `opgauge gate`, and reports are kept whatever the verdict is."""
    jobs = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())
    command: Any = typer.main.get_command(app)
    known = {name for option in command.commands["gate"].params for name in option.opts}
    (line,) = (line for line in jobs["opgauge-gate"]["script"] if "opgauge gate" in line)
    assert {word for word in line.split() if word.startswith("--")} <= known
    assert jobs["opgauge-gate"]["artifacts"]["when"] == "always"


class Notes(BaseHTTPRequestHandler):
    """The notes of a merge request as GitLab's API serves them, two a page; `written` are those that were sent."""

    notes: ClassVar[list[dict[str, Any]]] = []
    written: ClassVar[list[tuple[str, str]]] = []

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """The user of the token, or a page of notes."""
        if self.path == "/user":
            self._answer({"id": 7})
            return
        page = int(self.path.rpartition("=")[2])
        self._answer(self.notes[2 * page - 2 : 2 * page])

    def do_POST(self) -> None:
        """A new note, or a changed one."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
        self.written.append((f"{self.command} {self.path}", body))
        self._answer({})

    do_PUT = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("known", [False, True])
def test_the_note_of_a_merge_request_is_updated_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Its own note is changed, on whichever page it is; people's notes stay, and the report mentions nobody."""
    mark = "<!-- opgauge gate -->"
    others = [{"id": number, "body": f"{mark}\n", "author": {"id": 1}} for number in range(3)]
    monkeypatch.setattr(Notes, "notes", [*others, *([{"id": 9, "body": mark, "author": {"id": 7}}] if known else [])])
    monkeypatch.setattr(Notes, "written", [])
    (tmp_path / "opgauge-gate").mkdir()
    (tmp_path / "opgauge-gate" / "gate.md").write_text("/close\nslower @all\r\n\r/merge\n")
    (job,) = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())["opgauge-note"]["script"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Notes) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        variables = {
            "CI_API_V4_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "CI_MERGE_REQUEST_PROJECT_ID": "3",
            "CI_MERGE_REQUEST_IID": "5",
        }
        assert bash(job, tmp_path, **variables).returncode == 0
        assert Notes.written == []
        done = bash(job, tmp_path, **variables, OPGAUGE_NOTE_TOKEN="secret")  # noqa: S106
        server.shutdown()
    assert done.returncode == 0, done.stderr
    ((request, body),) = Notes.written
    assert request == f"{'PUT' if known else 'POST'} /projects/3/merge_requests/5/notes{'/9' if known else ''}"
    assert body.startswith(f"{mark}\n\u200b/close\nslower @\u200ball\n\n\u200b/merge")


def test_the_note_follows_no_link(tmp_path: Path) -> None:
    """A report that the change made a link to the job's variables is none."""
    (tmp_path / "opgauge-gate").mkdir()
    (tmp_path / "opgauge-gate" / "gate.md").symlink_to("/proc/self/environ")
    (job,) = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())["opgauge-note"]["script"]
    done = bash(job, tmp_path, OPGAUGE_NOTE_TOKEN="secret")  # noqa: S106
    assert (done.returncode, done.stdout) == (0, "no note: there is no report\n")


def test_the_note_runs_no_code_of_the_change() -> None:
    """Its token is of an environment that the measuring job is not in, and it checks nothing out."""
    jobs = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())
    assert jobs["opgauge-note"]["variables"]["GIT_STRATEGY"] == "none"
    assert jobs["opgauge-note"]["environment"]["name"] == "opgauge-note"
    assert "environment" not in jobs["opgauge-gate"]
    assert "TOKEN" not in " ".join(jobs["opgauge-gate"]["script"])
