"""`opgauge serve`: where it listens, and who may read there."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from harness.cli.app import app
from harness.cli.serve import is_loopback
from harness.errors import SettingsError
from harness.scope import Scope
from harness.settings import Settings
from harness.store import Store
from harness.store.tokens import create_token
from web.app import create_app


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.8.8.8", True), ("0.0.0.0", False), ("::", False)],  # noqa: S104
)
def test_loopback_is_told_from_the_rest(host: str, is_ours: bool) -> None:
    """Only what this machine alone reaches is loopback; a name is not trusted to be."""
    assert is_loopback(host) is is_ours
    assert not is_loopback("gpu-7.example")


def test_an_open_address_needs_tokens_or_public_read(tmp_path: Path) -> None:
    """Without either it refuses to start and says what to type."""
    url = f"sqlite:///{tmp_path}/x.db"
    done = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--db", url])  # noqa: S104
    assert isinstance(done.exception, SettingsError)
    assert "token create" in str(done.exception)


def test_a_guarded_service_shows_nothing_without_a_token(tmp_path: Path) -> None:
    """401 for pages and files; with a token as Bearer or as a browser's password they open."""
    url = f"sqlite:///{tmp_path}/x.db"
    with Store.open(url) as store:
        secret = create_token(store.engine, "reader", Scope.ACK)
    with TestClient(create_app(Settings(database=url), guarded=True)) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        assert client.get("/", auth=("anyone", secret)).status_code == 200
        assert client.get("/", auth=("anyone", "wrong")).status_code == 401
        assert client.get("/healthz").status_code == 200
