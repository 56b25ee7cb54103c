"""Tokens: made once, kept as hashes, revoked at once; who may do what, and how often."""

from __future__ import annotations

import base64
import json
import sqlite3
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from opgauge.harness.cli import app as cli
from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.scope import Scope
from opgauge.harness.store import Store
from opgauge.harness.store.tokens import count_tokens, create_token, find_token, list_tokens, note_use, revoke_token
from opgauge.web.auth import ReadGuard, secret_of
from opgauge.web.rate import MOST_KEYS, RateLimit, RateLimits
from tests.web.submissions import a_run, bearer, store_of

API = "/api/v1"


def test_only_a_hash_is_stored(tmp_path: Path) -> None:
    """The secret is nowhere in the database; it finds its token, until that is revoked."""
    path = tmp_path / "tokens.db"
    with Store.open(f"sqlite:///{path}") as store:
        secret = create_token(store.engine, "ci-1", Scope.SUBMIT)
        assert secret.startswith("opg_")
        assert len(secret) > 40
        found = find_token(store.engine, secret)
        assert found is not None
        assert (found.name, found.scope, found.revoked) == ("ci-1", Scope.SUBMIT, None)
        assert find_token(store.engine, secret[:-1]) is None
        assert find_token(store.engine, "") is None
        assert count_tokens(store.engine) == 1
        revoke_token(store.engine, "ci-1")
        assert find_token(store.engine, secret) is None
        assert count_tokens(store.engine) == 0
        assert list_tokens(store.engine)[0].revoked is not None
        with pytest.raises(StoreError, match="exists or existed"):
            create_token(store.engine, "ci-1", Scope.ADMIN)
        with pytest.raises(NothingError, match="no token ci-2"):
            revoke_token(store.engine, "ci-2")
    with sqlite3.connect(path) as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert secret not in dump
    assert secret.removeprefix("opg_") not in dump


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 65, "a\nb", "ä", "'; DROP TABLE token"])
def test_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    """A token's name is a plain word."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store, pytest.raises(StoreError, match="name"):
        create_token(store.engine, name, Scope.SUBMIT)


def test_tokens_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`create` prints the secret and nothing else on standard output; `list` never shows it; `revoke` ends it."""
    monkeypatch.setenv("OPGAUGE_DB", f"sqlite:///{tmp_path}/x.db")
    runner = CliRunner()
    made = runner.invoke(cli, ["token", "create", "ci", "--scope", "submit"])
    secret = made.stdout.strip()
    assert secret.startswith("opg_")
    listed = runner.invoke(cli, ["token", "list"]).stdout
    assert "ci" in listed
    assert secret not in listed
    assert json.loads(runner.invoke(cli, ["token", "list", "--json"]).stdout)[0]["scope"] == "submit"
    assert runner.invoke(cli, ["token", "revoke", "ci"]).exit_code == 0
    assert "revoked" in runner.invoke(cli, ["token", "list"]).stdout
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        assert find_token(store.engine, secret) is None
    assert runner.invoke(cli, ["token", "create", "ci", "--scope", "everything"]).exit_code == 2


def writes(client: TestClient) -> list[tuple[str, str, Any]]:
    """Every route that writes, or tells of what is being written."""
    run = a_run(1)
    address = f"{API}/runs/{run['run']['id']}"
    return [
        ("PUT", address, run),
        ("PUT", f"{address}/parts/0", run),
        ("POST", f"{address}/finish", {"parts": 1}),
        ("GET", f"{address}/parts", None),
        ("DELETE", f"{address}/parts", None),
    ]


def test_every_write_needs_a_token(writable: TestClient) -> None:
    """Without one 401, with a wrong or revoked one 401, with one for something else 403."""
    revoked = bearer(writable, name="gone")
    revoke_token(store_of(writable).engine, "gone")
    acknowledging = bearer(writable, Scope.ACK)
    for method, path, data in writes(writable):
        for headers, code in (
            ({}, 401),
            ({"Authorization": "Bearer opg_wrong"}, 401),
            ({"Authorization": "Bearer " + "x" * 5000}, 401),
            ({"Authorization": "Basic eDp4"}, 401),
            (revoked, 401),
            (acknowledging, 403),
        ):
            answer = writable.request(method, path, json=data, headers=headers)
            assert answer.status_code == code, (method, path, answer.text)
            assert set(answer.json()) == {"detail"}
            assert code != 401 or answer.headers["www-authenticate"] == "Bearer"


def test_no_route_writes_without_saying_so(client: TestClient) -> None:
    """Whatever is no GET in OpenAPI demands a token there and here."""
    described = client.get(f"{API}/openapi.json").json()["paths"]
    for path, verbs in described.items():
        for verb, route in verbs.items():
            if verb == "get":
                continue
            assert route["security"] == [{"HTTPBearer": []}]
            address = path.replace("{run_id}", str(uuid.uuid4())).replace("{number}", "0")
            assert client.request(verb, address).status_code == 401


def test_an_admin_may_do_everything(writable: TestClient) -> None:
    """The admin's token sends runs too."""
    run, headers = a_run(1), bearer(writable, Scope.ADMIN)
    assert writable.put(f"{API}/runs/{run['run']['id']}", json=run, headers=headers).status_code == 201


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst at once, then so many per second; keys are apart, and no more than so many are remembered."""
    now = [100.0]
    monkeypatch.setattr("opgauge.web.rate.monotonic", lambda: now[0])
    limit = RateLimit(per_s=2.0, burst=3)
    assert [limit.take("a") for _ in range(3)] == [0.0] * 3
    assert limit.take("a") == pytest.approx(0.5)
    assert limit.take("b") == 0.0
    now[0] += 0.5
    assert limit.take("a") == 0.0
    assert limit.take("a") > 0
    now[0] += 1000
    assert [limit.take("a") > 0 for _ in range(4)] == [False, False, False, True]
    for number in range(MOST_KEYS + 10):
        limit.take(str(number))
    assert len(limit._buckets) == MOST_KEYS


def test_writes_and_guesses_are_limited(writable: TestClient) -> None:
    """Too many writes with a token, or too many wrong tokens from an address: 429 and when to come back."""
    state = writable.app.state  # type: ignore[attr-defined]
    headers = bearer(writable)
    path = f"{API}/runs/{uuid.uuid4()}/parts"
    state.limits = RateLimits(token=RateLimit(0.001, 2), address=RateLimit(0.001, 5), wrong=RateLimit(0.001, 1))
    assert [writable.get(path, headers=headers).status_code for _ in range(3)] == [200, 200, 429]
    answer = writable.get(path, headers=headers)
    assert (answer.status_code, int(answer.headers["retry-after"]) > 1) == (429, True)
    assert writable.get(path, headers=bearer(writable)).status_code == 200
    state.limits = RateLimits(wrong=RateLimit(0.001, 2))
    wrong = {"Authorization": "Bearer opg_wrong"}
    assert [writable.get(path, headers=wrong).status_code for _ in range(3)] == [401, 401, 429]
    assert writable.get(f"{API}/runs").status_code == 200


def test_nobody_uses_up_the_limit_of_a_token(writable: TestClient) -> None:
    """Floods without a token, or with a wrong one, from its own address leave a good token alone."""
    state = writable.app.state  # type: ignore[attr-defined]
    state.limits = RateLimits(address=RateLimit(0.001, 2), wrong=RateLimit(0.001, 2))
    headers, path = bearer(writable), f"{API}/runs/{uuid.uuid4()}/parts"
    assert [writable.get(path).status_code for _ in range(4)] == [401, 401, 429, 429]
    wrong = {"Authorization": "Bearer opg_wrong"}
    assert [writable.get(path, headers=wrong).status_code for _ in range(4)] == [401, 401, 429, 429]
    assert [writable.get(path, headers=headers).status_code for _ in range(20)] == [200] * 20


def test_tokens_expire_and_show_their_use(tmp_path: Path) -> None:
    """An expired token is none; a used one says when; a reading one permits no writing."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        old = create_token(store.engine, "old", Scope.ADMIN, expires=datetime.now(UTC) - timedelta(seconds=1))
        fresh = create_token(store.engine, "fresh", Scope.READ, expires=datetime.now(UTC) + timedelta(days=1))
        assert find_token(store.engine, old) is None
        found = find_token(store.engine, fresh)
        assert found is not None
        assert [found.allows(scope) for scope in Scope] == [True, False, False, False]
        assert count_tokens(store.engine) == 1
        note_use(store.engine, found)
        used = {one.name: one.last_used for one in list_tokens(store.engine)}
        assert used["old"] is None
        assert used["fresh"] is not None


def test_a_guarded_service_is_read_with_a_token_only(tmp_path: Path) -> None:
    """Every path but /healthz asks for a token, Bearer or as a browser's password; the password never writes."""
    app = FastAPI()

    @app.get("/healthz")
    @app.get("/page")
    def page() -> str:
        return "here"

    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        secret = create_token(store.engine, "reader", Scope.ACK)
        app.add_middleware(ReadGuard, engine=store.engine, limits=RateLimits(wrong=RateLimit(0.001, 3)))
        client = TestClient(app)
        assert client.get("/healthz").status_code == 200
        answer = client.get("/page")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert client.get("/page", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        assert client.get("/page", auth=("anyone", secret)).status_code == 200
        assert client.get("/nothing", auth=("anyone", secret)).status_code == 404
        codes = [client.get("/page", auth=("anyone", "guess")).status_code for _ in range(4)]
        assert codes == [401, 401, 401, 429]


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  abc ", "abc"),
        (b"Basic " + base64.b64encode(b"x:a:b"), "a:b"),
        (b"Basic ???", ""),
        (b"Basic " + base64.b64encode(b"\xff\xff"), ""),
        (b"Basic", ""),
        (b"", ""),
        (b"\xff\xfe", ""),
    ],
)
def test_headers_are_read_with_care(header: bytes, secret: str) -> None:
    """Whatever the header holds, it is a token or none."""
    assert secret_of(header) == secret
