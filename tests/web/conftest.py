"""A filled store and an empty one, and clients of the service over them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.settings import Settings
from harness.store import Store
from tests.web.dataset import fill
from web.app import create_app

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
def client(filled_file: Path) -> Iterator[TestClient]:
    """The service over the filled store."""
    with TestClient(create_app(Settings(database=f"sqlite:///{filled_file}"))) as made:
        yield made


@pytest.fixture
def writable(filled_file: Path, tmp_path: Path) -> Iterator[TestClient]:
    """The service over a copy of the filled store."""
    copy = tmp_path / "copy.db"
    shutil.copy(filled_file, copy)
    with TestClient(create_app(Settings(database=f"sqlite:///{copy}"))) as made:
        yield made


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over a store without runs."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    with TestClient(create_app(Settings(database=f"sqlite:///{path}"))) as made:
        yield made
