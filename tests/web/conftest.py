"""A filled store and an empty one, and clients of the service over them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.web.app import create_app
from tests.databases import SERVER, database
from tests.web.dataset import fill

with warnings.catch_warnings():
    # it would rather have another package than httpx, which the client of the service needs
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient


@pytest.fixture(scope="session")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with runs; not to be written."""
    path = tmp_path_factory.mktemp("store") / "filled.db"
    with Store.open(f"sqlite:///{path}") as store:
        fill(store)
    return path


@pytest.fixture(scope="session")
def filled(filled_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the filled store, for copies only; on PostgreSQL where that is asked for."""
    if not SERVER:
        yield f"sqlite:///{filled_file}"
        return
    with database(tmp_path_factory.mktemp("store")) as url:
        with Store.open(url) as store:
            fill(store)
        yield url


@pytest.fixture(scope="session")
def client(filled: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over the filled store, only to be read."""
    with (
        database(tmp_path_factory.mktemp("store"), filled) as url,
        TestClient(create_app(Settings(database=url))) as made,
    ):
        yield made


@pytest.fixture
def writable(filled: str, tmp_path: Path) -> Iterator[TestClient]:
    """The service over a copy of the filled store."""
    with database(tmp_path, filled) as url, TestClient(create_app(Settings(database=url))) as made:
        yield made


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over a store without runs."""
    with (
        database(tmp_path_factory.mktemp("store")) as url,
        TestClient(create_app(Settings(database=url))) as made,
    ):
        yield made


@pytest.fixture
def empty_copy(tmp_path: Path) -> Iterator[TestClient]:
    """The service over a store without runs, to be written."""
    with database(tmp_path) as url, TestClient(create_app(Settings(database=url))) as made:
        yield made
