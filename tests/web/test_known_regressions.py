"""Known regressions: one key each, whatever runs come, for the feed, addresses and webhooks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import Submission
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.regression_keys import add_keys, find_keys
from opgauge.harness.store.webhooks import Event, Form, add_webhook
from opgauge.web import known_regressions as module
from opgauge.web.app import create_app
from opgauge.web.cache import Cache
from opgauge.web.notify import queue_events
from opgauge.web.reader import Reader
from tests.databases import database
from tests.web import dataset
from tests.web.dataset import HARD, START, broken, results

SLOWER = 1.3
NOISE = np.random.default_rng(3)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database(tmp_path) as made:
        yield made


def measure(
    url: str,
    hours: list[int],
    bad_from: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Enter runs of the commits of some hours; one series is slower, or broken, from a commit on."""
    with Store.open(url) as store:
        for hour in hours:
            is_bad = hour >= bad_from
            factor = SLOWER if is_bad and kind == "slower" else 1.0
            monkeypatch.setattr(
                dataset, "_factor", lambda _, name, device, __, by=factor: by if _is(name, device) else 1
            )
            found = [one for one in results(0, NOISE) if one.trial.case.name == "rows-64"]
            if is_bad and kind == "broken":
                found = [broken(one) if _is(one.trial.implementation, one.trial.device) else one for one in found]
            when = START + timedelta(hours=hour)
            soft = {"commit": f"{hour:02x}" * 20, "branch": "main", "commit_time": when.isoformat(), **facts}
            run = Submission(str(uuid4()), when, when, "finished", "", Environment(HARD, soft), (), tuple(found))
            add_run(store.engine, run)


def _is(name: str, device: str) -> bool:
    return (name, device) == ("optimized", "cuda:0")


def entries(url: str) -> list[str]:
    """Ids of the feed's entries."""
    with TestClient(create_app(Settings(database=url))) as client:
        found = re.findall(r"<id>[^<]*/regressions/(\w+)</id>", client.get("/regressions.atom").text)
        assert all(client.get(f"/regressions/{key}").status_code == 200 for key in found)
        return found


@pytest.mark.parametrize("kind", ["slower", "broken"])
def test_an_entry_stays_when_an_earlier_commit_is_found_to_be_the_first(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits in between are measured later, many at once: same id, same page, and one message of a webhook."""
    measure(url, [*range(12), *range(30, 36)], 20, kind, monkeypatch)
    with Store.open(url) as store:
        add_webhook(store.engine, "chat", "https://x.example", project="", form=Form.JSON, events=frozenset(Event))
        reader = Reader(store, Cache(lambda: 0))
        now = START + timedelta(hours=36)
        assert queue_events(reader, now) == 1
        (before,) = entries(url)
        first = module.known_regressions(reader)[0].run
        for hours in ([29], list(range(20, 29)), [12, 13, 14]):
            measure(url, hours, 20, kind, monkeypatch)
            reader = Reader(store, Cache(lambda: 0))
            assert queue_events(reader, now) == 0
            assert entries(url) == [before]
        assert module.known_regressions(reader)[0].run.started < first.started


def test_a_regression_after_a_repair_is_another_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is fixed and has its id still; the second has its own."""
    measure(url, list(range(10)), 6, "broken", monkeypatch)
    (first,) = entries(url)
    measure(url, [10, 11], 99, "broken", monkeypatch)
    assert entries(url) == [first]
    measure(url, [12, 13], 12, "broken", monkeypatch)
    second, again = entries(url)
    assert again == first
    assert second != first


def test_a_database_that_cannot_be_written_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are those of the present beginnings then."""

    def refuse(*_: object) -> dict[str, str]:
        statement = "INSERT"
        raise OperationalError(statement, None, RuntimeError("attempt to write a readonly database"))

    monkeypatch.setattr(module, "add_keys", refuse)
    measure(url, list(range(10)), 6, "broken", monkeypatch)
    assert len(entries(url)) == 1


def test_the_key_that_another_process_stored_first_is_in_force(url: str) -> None:
    """Both processes of a service see a new regression at the same time."""
    with Store.open(url) as store:
        assert add_keys(store.engine, {"a": "x", "b": "y"}) == {"a": "x", "b": "y"}
        assert add_keys(store.engine, {"b": "z", "c": "w"}) == {"b": "y", "c": "w"}
        assert find_keys(store.engine, ["a", "b", "c", "d"]) == {"a": "x", "b": "y", "c": "w"}
