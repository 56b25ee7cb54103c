"""When Chromium first paints a page: with nothing kept from before, and again with scripts and styles at hand."""

from __future__ import annotations

import shutil
from statistics import median

from playwright.sync_api import Browser, BrowserContext, sync_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
TIMES = 7
_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  const found = list.getEntriesByName('first-contentful-paint')[0];
  if (found) done(found.startTime);
}).observe({type: 'paint', buffered: true}))"""


def first_paint_ms(url: str) -> tuple[float, float] | None:
    """First contentful paint of a first and of a second visit, medians; None without Chromium."""
    path = shutil.which("chromium")
    if path is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        _visit(browser, url)
        visits = [_visit(browser, url) for _ in range(TIMES)]
        browser.close()
    return median(first for first, _ in visits), median(second for _, second in visits)


def _visit(browser: Browser, url: str) -> tuple[float, float]:
    context = browser.new_context()
    found = (_paint(context, url), _paint(context, url))
    context.close()
    return found


def _paint(context: BrowserContext, url: str) -> float:
    page = context.new_page()
    page.goto(url)
    found = float(page.evaluate(_PAINT))
    page.close()
    return found
