"""The page of a cluster: members, tasks and commands, or the reason why there are none."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from opgauge.harness.cluster.status import ClusterMember, ClusterState, TaskQueue
from opgauge.harness.errors import SettingsError
from opgauge.harness.settings import Settings, load_settings
from opgauge.web.app import create_app
from opgauge.web.pages import cluster

with warnings.catch_warnings():
    # the test client prefers another package than httpx
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

ADDRESS = "tcp://scheduler:8786"
STATE = ClusterState(
    (
        ClusterMember("gpu-0", "one", "tcp://one:1", "1 cuda", ("p_norm/<b>rows</b>",), 300 << 20),
        ClusterMember("reference-0", "one", "tcp://one:2", "1 reference", (), 200 << 20),
    ),
    (TaskQueue("opgauge run", "laptop", 12, 1, 34),),
)


def client_of(folder: Path, scheduler: str) -> TestClient:
    """A client of a service whose settings name a scheduler."""
    return TestClient(create_app(Settings(database=f"sqlite:///{folder}/x.db", scheduler=scheduler)))


def test_without_a_scheduler_there_is_no_page(tmp_path: Path) -> None:
    """Neither the page nor a link to it exists where no cluster is set."""
    with client_of(tmp_path, "") as client:
        assert client.get("/cluster").status_code == 404
        assert 'href="/cluster"' not in client.get("/").text


def test_members_commands_and_tasks_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names every member, its task, escaped, and the queue; the scheduler is asked once for two requests."""
    asked: list[str] = []

    def look(address: str) -> ClusterState:
        asked.append(address)
        return STATE

    monkeypatch.setattr(cluster, "look", look)
    with client_of(tmp_path, ADDRESS) as client:
        text = client.get("/cluster").text
        assert client.get("/cluster").text == text
        assert 'href="/cluster"' in client.get("/").text
    assert asked == [ADDRESS]
    for part in ("gpu-0", "1 cuda", "300 MiB", "opgauge run", "laptop", "12", "34", "1 of them"):
        assert part in text
    assert "p_norm/&lt;b&gt;rows&lt;/b&gt;" in text


def test_a_scheduler_that_does_not_answer_is_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is shown instead of an error."""

    def refuse(_: str) -> ClusterState:
        msg = "no scheduler answers at tcp://scheduler:8786"
        raise SettingsError(msg)

    monkeypatch.setattr(cluster, "look", refuse)
    with client_of(tmp_path, ADDRESS) as client:
        answer = client.get("/cluster")
    assert answer.status_code == 200
    assert "no scheduler answers" in answer.text


def test_the_environment_names_the_scheduler() -> None:
    """`OPGAUGE_SCHEDULER`, without spaces around it."""
    assert load_settings({"OPGAUGE_SCHEDULER": f" {ADDRESS} "}).scheduler == ADDRESS
    assert not load_settings({}).scheduler
