"""Pictures of the pages for the documentation, of the committed runs: `python -m tests.web.screenshots`."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "screenshots"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
OP = "p_norm_grad"
PAGES = {"overview": "/", "op": f"/ops/{OP}", "run": "/runs", "case": f"/ops/{OP}", "roofline": "/roofline"}
"""Where each picture begins; those of a run and of a case are a click further."""
CLICKS = {"run": "tbody a[href^='/runs/']", "case": "tbody a[href^='/cases/']"}
DARK = ("case", "run")
SCROLLED = {"case": "h3"}
"""To what a page is scrolled, where its top shows little of one run."""
PARTS = {"roofline": "figure"}
"""Pictures of a part of a page: in a narrower window, for they are shown larger."""
WIDTH, PART_WIDTH, HEIGHT = 1280, 1000, 960
PATIENCE_S = 60.0
SETTLE_MS = 1500


def main() -> None:
    """Import, serve, look, stop."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/demo.db"
        exports = sorted((ROOT / "tests" / "data" / "h200").glob("*.json"))
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
    return [sys.executable, "-c", "from opgauge.harness.cli import main; main()"]


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
        for name, path in PAGES.items():
            theme: Literal["dark", "light"] = "dark" if name in DARK else "light"
            width = PART_WIDTH if name in PARTS else WIDTH
            page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
            page.goto(base + path)
            if name in CLICKS:
                page.locator(CLICKS[name]).last.click()
            page.wait_for_timeout(SETTLE_MS)
            if name in SCROLLED:
                page.locator(SCROLLED[name]).first.evaluate("(one) => window.scrollTo(0, one.offsetTop - 340)")
            (page.locator(PARTS[name]) if name in PARTS else page).screenshot(path=FOLDER / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
