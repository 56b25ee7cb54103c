"""Runs as they are sent, and tokens to send them with."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from opgauge.harness.report.export import whole_run
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment
from opgauge.harness.scope import Scope
from opgauge.harness.store import Run, Store
from opgauge.harness.store.tokens import create_token
from tests.web.dataset import results as dataset_results

STARTED = datetime(2026, 2, 1, 9, tzinfo=UTC)
ENVIRONMENT = Environment({"cpu.model": "test", "cuda:0.model": "NVIDIA H200"}, {"commit": "c" * 40})


def a_run(count: int = 6) -> dict[str, Any]:
    """A run with some results of the dataset."""
    noise = np.random.default_rng(1)

    run = Run(str(uuid.uuid4()), STARTED, STARTED, "finished", "c" * 40, "opgauge run", ENVIRONMENT, count)
    found = [one for _, one in zip(range(count), dataset_results(0, noise), strict=False)]
    sent: dict[str, Any] = json.loads(json.dumps(whole_run(run, found, {"cpu": Ceilings("cpu", copy_gbps=10.0)})))
    return sent


def store_of(client: TestClient) -> Store:
    """The store of the service behind a client."""
    found: Store = client.app.state.store  # type: ignore[attr-defined]
    return found


def bearer(client: TestClient, scope: Scope = Scope.SUBMIT, name: str = "") -> dict[str, str]:
    """Headers with a new token."""
    secret = create_token(store_of(client).engine, name or f"t-{uuid.uuid4().hex[:8]}", scope)
    return {"Authorization": f"Bearer {secret}"}


API = "/api/v1"


def put(client: TestClient, run: dict[str, Any], headers: dict[str, str], path: str = "", code: int = 201) -> Any:
    """Send a run or a part."""
    answer = client.put(f"{API}/runs/{run['run']['id']}{path}", json=run, headers=headers)
    assert answer.status_code == code, answer.text[:300]
    return answer.json()


def count(client: TestClient, row: Any) -> int:
    """Rows of a table."""
    with store_of(client).engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(row)).scalar() or 0


def seen(client: TestClient, run: dict[str, Any]) -> bool:
    """Whether anybody can see the run."""
    found = bool(client.get(f"{API}/runs/{run['run']['id']}").status_code == 200)
    assert found == (run["run"]["id"] in [one.id for one in store_of(client).runs(limit=100)])
    return found
