"""Screenshots of the pages over committed runs, for the documentation: `python -m tools.screenshots`."""

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

ROOT = Path(__file__).resolve().parents[1]
"""Root of the repository."""
FOLDER = ROOT / "docs" / "screenshots"
"""Folder of the pictures."""
CHROMIUM = "/usr/bin/chromium"
"""Program of the browser."""
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
"""Options of the browser."""
OP = "p_norm_grad"
"""Op of the pictures."""
PAGES = {"overview": "/", "op": f"/ops/{OP}", "run": "/runs", "case": f"/ops/{OP}", "roofline": "/roofline"}
"""Address of the first page of each picture; a run and a case are one click further."""
CLICKS = {"run": "tbody a[href^='/runs/']", "case": "tbody a[href^='/cases/']"}
"""Link that leads to the page of a picture."""
DARK = ("case", "run")
"""Pictures with a dark theme too."""
SCROLLED = {"case": "h3"}
"""Element to scroll to, for pages whose top shows little of one run."""
PARTS = {"roofline": "figure"}
"""Element of a picture that shows a part of a page, in a narrower window."""
WIDTH, PART_WIDTH, HEIGHT = 1280, 1000, 960
"""Size of the window, and its width for parts."""
PATIENCE_S = 60.0
"""Longest wait for the service, in seconds."""
RENDER_MS = 1500
"""Time for charts to be drawn, in milliseconds."""


def main() -> None:
    """Import the runs, serve them and take the pictures."""
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
            page.wait_for_timeout(RENDER_MS)
            if name in SCROLLED:
                page.locator(SCROLLED[name]).first.evaluate("(one) => window.scrollTo(0, one.offsetTop - 340)")
            (page.locator(PARTS[name]) if name in PARTS else page).screenshot(path=FOLDER / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
