"""A real browser, and the service on a port of this machine."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from opgauge.harness.settings import Settings
from opgauge.web.app import create_app
from opgauge.web.reader import Reader

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]


@dataclass
class Site:
    """The service as a browser reaches it."""

    app: FastAPI
    port: int

    @property
    def root(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def reader(self) -> Reader:
        """What it reads through."""
        found: Reader = self.app.state.reader
        return found


@dataclass
class Watched:
    """A page, and what its console complained of."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str) -> None:
        """Go there and wait until every figure is drawn."""
        self.page.goto(address)
        self.drawn()

    def drawn(self) -> None:
        """Wait until every figure is drawn."""
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('figure[data-chart]')].every((one) => one.dataset.drawn)"
        )


@contextmanager
def serving(path: Path) -> Iterator[Site]:
    """The service over a database."""
    app = create_app(Settings(database=f"sqlite:///{path}"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", ws="none"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        sleep(0.02)
    yield Site(app, port)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; without it these tests are skipped."""
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def site(filled_file: Path) -> Iterator[Site]:
    """The service over the filled store."""
    with serving(filled_file) as found:
        yield found


@pytest.fixture(scope="session")
def bare_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The service over a store without runs."""
    with serving(tmp_path_factory.mktemp("bare") / "empty.db") as found:
        yield found


@pytest.fixture
def own_site(filled_file: Path, tmp_path: Path) -> Iterator[Site]:
    """The service over a copy of the filled store."""
    shutil.copy(filled_file, tmp_path / "copy.db")
    with serving(tmp_path / "copy.db") as found:
        yield found


@contextmanager
def watching(browser: Browser, *, dark: bool = False, width: int = 1280, scripts: bool = True) -> Iterator[Watched]:
    """A page that collects what its console complains of; complaints at the end fail the test."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": width, "height": 900}, java_script_enabled=scripts
    )
    watched = Watched(context.new_page())

    def hear(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            watched.complaints.append(message.text)

    watched.page.on("console", hear)
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on("dialog", lambda dialog: watched.complaints.append(f"dialog: {dialog.message}"))
    yield watched
    context.close()
    assert watched.complaints == []
