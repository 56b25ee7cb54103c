"""Pictures of the main pages for README, of the committed runs: `python -m tests.web.screenshots`."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "screenshots"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PAGES = {"overview": "/", "runs": "/runs", "op": "/ops/p_norm_grad"}
WIDTH, HEIGHT = 1280, 1000
PATIENCE_S = 60.0
SETTLE_MS = 1500


def main() -> None:
    """Import, serve, look, stop."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/demo.db"
        exports = sorted((ROOT / "tests" / "data").glob("*/*.json"))
        _opgauge("import", *map(str, exports), "--db", url)
        port = _free_port()
        server = subprocess.Popen([*_command(), "serve", "--port", str(port), "--db", url], cwd=ROOT)
        try:
            _wait_for(f"http://127.0.0.1:{port}/healthz")
            _look(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _command() -> list[str]:
    return [sys.executable, "-c", "from harness.cli import main; main()"]


def _opgauge(*arguments: str) -> None:
    subprocess.run([*_command(), *arguments], cwd=ROOT, check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            with urlopen(url):  # noqa: S310  our own address
                return
        except (URLError, ConnectionError):
            time.sleep(0.2)
    msg = f"{url} does not answer"
    raise TimeoutError(msg)


def _look(base: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for name, path in PAGES.items():
            page.goto(base + path)
            page.wait_for_timeout(SETTLE_MS)
            page.screenshot(path=FOLDER / f"{name}.png")
        page.locator("a[href^='/cases/']").first.click()
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=FOLDER / "case.png")
        browser.close()


if __name__ == "__main__":
    main()
