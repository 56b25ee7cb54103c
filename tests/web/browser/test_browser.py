"""Pages in Chromium: figures drawn, nothing on the console, no serious complaint of axe-core, in both themes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from opgauge.harness.scope import Scope
from opgauge.harness.store.tokens import create_token
from opgauge.web.known_regressions import known_regressions
from tests.web.browser.conftest import Site, watching
from tests.web.dataset import HOSTILE

AXE = Path(__file__).parent / "axe.min.js"
BARE = ("/", "/ops", "/roofline", "/coverage", "/runs", "/compare", "/regressions", "/trust", "/nowhere")


def addresses(site: Site) -> dict[str, str]:
    """A page of each kind."""
    runs, cases = site.reader.runs(), site.reader.recent().cases.values()
    ids = {case.name: case.case_id for case in cases}
    opened = known_regressions(site.reader)[1]
    return {
        "overview": "/",
        "ops": "/ops",
        "op": "/ops/p_norm",
        "op without roofline": "/ops/flatten?device=all",
        "case": f"/cases/{ids['seed-1[float32,porder=2]']}",
        "hostile case": f"/cases/{ids[HOSTILE]}",
        "roofline": "/roofline",
        "coverage": "/coverage",
        "roofline of a run": f"/roofline?run={runs[1].id}&implementation=torch",
        "runs": "/runs",
        "run": f"/runs/{runs[0].id}",
        "compare": f"/compare?base={runs[1].id[:8]}&head={runs[0].id[:8]}",
        "compare devices": f"/compare?base={runs[1].id[:8]}&head={runs[0].id[:8]}&base_device=cpu&head_device=cuda:0",
        "compare several": f"/compare?base={runs[9].id[:8]}&head={runs[1].id[:8]}&head={runs[0].id[:8]}",
        "devices": "/devices",
        "devices of an op": "/devices?op=lerp",
        "search": "/search?q=seed",
        "regressions": "/regressions",
        "regression": f"/regressions/{opened.key}",
        "trust": "/trust",
    }


def serious(page: Page, *, dark: bool = False) -> list[str]:
    """Violations that axe-core rates serious or critical; in the dark theme, which changes colours, of contrast."""
    options = {"resultTypes": ["violations"], **({"runOnly": ["color-contrast"]} if dark else {})}
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]


@dataclass(frozen=True)
class Visit:
    """Findings on a page: violations of accessibility, requests to other origins, titles of the buttons of figures."""

    violations: list[str]
    foreign: list[str]
    titles: list[str]


@pytest.fixture(scope="module")
def visits(browser: Browser, site: Site) -> dict[str, Visit]:
    """Each kind of page, opened once in the light theme, with every button of its figures clicked."""
    found = {}
    with watching(browser) as watched:
        foreign: list[str] = []

        def look(address: str) -> None:
            if not address.startswith((site.root, "data:", "blob:")):
                foreign.append(address)

        watched.page.on("request", lambda request: look(request.url))
        watched.page.context.on("page", lambda page: look(page.url))
        for name, address in addresses(site).items():
            watched.open(site.root + address)
            violations = serious(watched.page)
            titles = click_figures(watched.page)
            found[name] = Visit(violations, foreign.copy(), titles)
            foreign.clear()
            assert watched.complaints == [], name
    return found


def click_figures(page: Page) -> list[str]:
    """Click every button of every figure but the first, which downloads a picture; their titles."""
    titles = []
    figures = page.locator("figure[data-chart]")
    for place in range(figures.count()):
        figures.nth(place).hover()
        buttons = figures.nth(place).locator(".modebar-btn")
        titles += [str(button.get_attribute("data-title")) for button in buttons.all()]
        for button in buttons.all()[1:]:
            button.click(force=True)
    return titles


def test_every_page_with_data_is_drawn_and_accessible(visits: dict[str, Visit]) -> None:
    """Figures are drawn, the console is empty, and axe-core finds nothing serious."""
    assert {name: visit.violations for name, visit in visits.items() if visit.violations} == {}


def test_no_page_asks_another_origin(visits: dict[str, Visit]) -> None:
    """Whatever is clicked in a figure's toolbar, nothing leaves the service; no button shares or uploads."""
    assert {name: visit.foreign for name, visit in visits.items() if visit.foreign} == {}
    titles = {title for visit in visits.values() for title in visit.titles}
    assert titles
    assert not [title for title in titles if re.search("share|cloud|upload|edit", title, re.IGNORECASE)]


def test_every_page_with_data_has_contrast_in_the_dark(browser: Browser, site: Site) -> None:
    """The dark theme draws every figure and has no text that is hard to read."""
    with watching(browser, dark=True) as watched:
        for name, address in addresses(site).items():
            watched.open(site.root + address)
            assert serious(watched.page, dark=True) == [], name
            assert watched.complaints == [], name


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_without_data_is_accessible(browser: Browser, bare_site: Site, dark: bool) -> None:
    """The empty states too."""
    with watching(browser, dark=dark) as watched:
        for address in BARE:
            watched.open(bare_site.root + address)
            assert serious(watched.page, dark=dark) == [], address
            if address == "/nowhere":
                watched.complaints.clear()  # the browser itself notes the 404
            assert watched.complaints == [], address


def test_pages_fit_a_phone(browser: Browser, site: Site) -> None:
    """No page is wider than a narrow screen; tables scroll by themselves."""
    with watching(browser, width=360) as watched:
        for name, address in addresses(site).items():
            watched.open(site.root + address)
            assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360, name
            assert watched.complaints == [], name


def test_a_reason_is_read_on_a_phone_without_scrolling(browser: Browser, site: Site) -> None:
    """Its lines are as wide as the screen, however wide the table is, and stay where they are when that scrolls."""
    case = next(one for one in site.reader.recent().cases.values() if one.name == "rows-64")
    for dark in (False, True):
        with watching(browser, width=390, dark=dark) as watched:
            watched.open(f"{site.root}/cases/{case.case_id}")
            table = watched.page.get_by_role("region", name="Results of this run")
            assert table.evaluate("(one) => one.scrollWidth") > 390
            for left in (0, 300):
                table.evaluate(f"(one) => {{ one.scrollLeft = {left}; }}")
                box = table.locator(".reason td > div").first.bounding_box()
                assert box
                assert 0 <= box["x"] < box["x"] + box["width"] <= 390, (dark, left, box)


def test_a_verdict_is_seen_on_a_phone_without_scrolling(browser: Browser, site: Site) -> None:
    """It stands beside its case, and a long reason is folded."""
    for dark in (False, True):
        with watching(browser, width=390, dark=dark) as watched:
            watched.open(site.root + addresses(site)["compare"])
            box = watched.page.get_by_role("region", name="Comparisons").locator("tbody .badge").first.bounding_box()
            assert box
            assert 0 <= box["x"] < box["x"] + box["width"] <= 390, (dark, box)


def test_the_theme_is_switched_and_kept(browser: Browser, site: Site) -> None:
    """The button turns page and figures dark; the next page is dark as well."""
    with watching(browser) as watched:
        watched.open(f"{site.root}/ops/p_norm")
        page = watched.page
        light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        colour = page.locator(".xtick text").first.evaluate("(one) => getComputedStyle(one).fill")
        page.get_by_role("button", name="Switch between light and dark").click()
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light
        page.wait_for_function(
            "(before) => getComputedStyle(document.querySelector('.xtick text')).fill !== before", arg=colour
        )
        page.get_by_role("link", name="Runs", exact=True).click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_filters_change_table_and_address_without_reloading(browser: Browser, site: Site) -> None:
    """Choosing a dtype leaves its rows, draws the figure anew, and can be linked and gone back from."""
    with watching(browser) as watched:
        watched.open(f"{site.root}/ops/p_norm")
        page = watched.page
        page.evaluate("window.stayed = true")
        expect(page.locator("tbody tr")).to_have_count(4)
        page.get_by_label("Dtype").select_option("float16")
        expect(page.locator("tbody tr")).to_have_count(2)
        watched.drawn()
        assert "dtype=float16" in page.url
        assert page.evaluate("window.stayed")
        assert page.locator("main").count() == 1
        page.go_back()
        expect(page.locator("tbody tr")).to_have_count(4)
        # the page that came back is another document body
        page.keyboard.press("/")
        expect(page.locator("#find")).to_be_focused()


def test_filters_work_without_scripts(browser: Browser, site: Site) -> None:
    """The form is an ordinary one."""
    with watching(browser, scripts=False) as watched:
        page = watched.page
        page.goto(f"{site.root}/ops/p_norm")
        page.get_by_label("Dtype").select_option("float16")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("tbody tr")).to_have_count(2)


def test_two_runs_are_compared_from_the_list(browser: Browser, site: Site) -> None:
    """The radio buttons choose base and head; the page names both, and a verdict filters."""
    with watching(browser) as watched:
        page = watched.page
        page.goto(f"{site.root}/runs")
        page.get_by_role("button", name="Compare base and head").click()
        watched.drawn()
        expect(page.locator("h1")).to_have_text("Compare")
        page.locator(".badges a", has_text="broken").click()
        expect(page.locator("table[class=data] tbody tr")).to_have_count(1)


def test_a_regression_is_acknowledged(browser: Browser, own_site: Site) -> None:
    """From the overview to the form; the waiver is there to copy, and the list says who answers."""
    secret = create_token(own_site.reader.engine, "ada", Scope.ACK)
    with watching(browser) as watched:
        page = watched.page
        page.goto(own_site.root)
        page.locator(".lately li", has_text="seed-1").get_by_role("link", name="details").click()
        page.get_by_label("Your name").fill("Ada")
        page.get_by_label("Reason").fill(HOSTILE)
        page.get_by_label("Token of scope").fill(secret)
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.locator(".lead")).to_contain_text("acknowledged")
        expect(page.locator("#waiver")).to_contain_text("owner: Ada")
        page.goto(f"{own_site.root}/regressions?state=acknowledged")
        expect(page.locator("tbody")).to_contain_text(HOSTILE)


def test_a_click_into_the_history_opens_that_run(browser: Browser, site: Site) -> None:
    """The details below are of the run whose point was clicked."""
    with watching(browser) as watched:
        watched.open(site.root + addresses(site)["case"])
        page = watched.page
        shown = page.evaluate(
            """() => { const plot = document.querySelector("figure[data-chart=history] .plot");
            const run = plot.data[0].customdata[3];
            plot.emit("plotly_click", {points: [{customdata: run}]});
            return run; }"""
        )
        page.wait_for_url(re.compile(f"run={shown}"))
        expect(page.locator("h2", has_text=f"In run {shown[:8]}")).to_be_visible()


def test_keys_reach_the_content(browser: Browser, site: Site) -> None:
    """The first tab stop skips the navigation."""
    with watching(browser) as watched:
        page = watched.page
        page.goto(site.root)
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to content")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_plotly_rules_are_those_of_the_installed_plotly(browser: Browser, site: Site) -> None:
    """The style sheet that stands in for plotly.js's own has every rule that it would add."""
    sheet = (Path(__file__).parents[3] / "web" / "static" / "vendor" / "plotly.css").read_text(encoding="utf-8")
    ours = {re.sub(r"\s+", "", line.partition("{")[0]) for line in sheet.splitlines()[1:]}
    with watching(browser) as watched:
        watched.page.goto(site.root)
        watched.page.goto("about:blank")
        watched.page.evaluate((Path(site_plotly())).read_text(encoding="utf-8"))
        found = watched.page.evaluate(
            "[...document.getElementById('plotly.js-style-global').sheet.cssRules].map((one) => one.selectorText)"
        )
    theirs = {re.sub(r"\s+", "", selector).replace("::", ":") for selector in found}
    assert theirs <= {selector.replace("::", ":") for selector in ours}


def site_plotly() -> Path:
    """plotly.js as it is installed."""
    from opgauge.web.assets import _plotly

    return _plotly()


def test_a_table_is_sorted_by_its_heads(browser: Browser, site: Site) -> None:
    """A click sorts by numbers with their units, another one reverses; a screen reader is told."""
    with watching(browser) as watched:
        page = watched.page
        page.goto(f"{site.root}/devices?op=p_norm")
        head = page.locator("table").last.locator("thead th").nth(2)
        cells = page.locator("table").last.locator("tbody tr td:nth-child(3)")
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        rising = cells.all_inner_texts()
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "descending")
        assert cells.all_inner_texts() == rising[::-1] != rising
        assert serious(page) == []


def test_search_by_keyboard_alone(browser: Browser, site: Site) -> None:
    """`/` focuses the box, arrows choose a hit, Enter opens it; Escape returns to the box."""
    with watching(browser) as watched:
        page = watched.page
        page.goto(site.root)
        page.keyboard.press("/")
        expect(page.locator("#find")).to_be_focused()
        page.keyboard.type("lerp")
        expect(page.locator("#hits a").first).to_have_text("lerp")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#hits a").first).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#find")).to_be_focused()
        page.keyboard.press("ArrowDown")
        assert serious(page) == []
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("lerp")


def test_a_range_chosen_in_one_figure_is_shown_in_all(browser: Browser, site: Site) -> None:
    """The range slider of the history zooms memory too; a switch of the theme keeps the range."""
    with watching(browser) as watched:
        watched.open(site.root + addresses(site)["case"])
        page = watched.page
        expect(page.locator("figure[data-chart=history] .rangeslider-container")).to_be_visible()
        plot = "document.querySelector('figure[data-chart={}] .plot')"
        range_of = f"{plot}.layout.xaxis.range.map((one) => String(one).slice(0, 10)).join()"
        chosen = ["2026-01-10", "2026-01-20"]
        page.evaluate(f"Plotly.relayout({plot.format('history')}, {{'xaxis.range': {chosen}}})")
        page.wait_for_function(f"{range_of.format('memory')} === '{','.join(chosen)}'")
        page.get_by_role("button", name="Switch between light and dark").click()
        assert page.evaluate(range_of.format("history")) == ",".join(chosen)
        page.evaluate(f"Plotly.relayout({plot.format('memory')}, {{'xaxis.autorange': true}})")
        page.wait_for_function(f"{range_of.format('history')} !== '{','.join(chosen)}'")
