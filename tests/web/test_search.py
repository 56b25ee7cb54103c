"""Search, and the data of figures as CSV."""

from __future__ import annotations

import csv
import io
import re
from html import unescape

import pytest
from fastapi.testclient import TestClient

from tests.web.dataset import HOSTILE


def hits(client: TestClient, wanted: str) -> list[tuple[str, str]]:
    """Address and title of each hit below the search box."""
    body = client.get("/search/hits", params={"q": wanted}).text
    return [
        (unescape(href), unescape(title)) for href, title in re.findall(r'<li><a href="([^"]+)"[^>]*>(.*?)</a>', body)
    ]


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("lerp", "/ops/lerp"),
        ("seed-1 porder=inf float16", "/cases/"),
        ("warp_rows", "/ops/p_norm"),
        ("reduce_kernel", "/cases/"),
        ("0303030303", "/runs?commit=0303"),
    ],
)
def test_the_first_hit_is_what_was_named(client: TestClient, wanted: str, address: str) -> None:
    """Ops, cases, implementations, GPU kernels and commits are found, and every hit's page exists."""
    found = hits(client, wanted)
    assert found[0][0].startswith(address)
    assert all(client.get(href).status_code == 200 for href, _ in found)


def test_words_are_found_in_any_order(client: TestClient) -> None:
    """Each word has to occur, wherever."""
    assert hits(client, "float16 seed-1 inf") == hits(client, "inf seed-1 float16") != []
    assert hits(client, "seed-1 nothing-like-this") == []


def test_exact_names_come_before_longer_ones(client: TestClient) -> None:
    """`p_norm` is the op before it is a part of kernels."""
    assert hits(client, "p_norm")[0] == ("/ops/p_norm", "p_norm")


def test_hostile_words_are_shown_as_text(client: TestClient) -> None:
    """Neither the words nor the names that they find are markup."""
    for address in ("/search", "/search/hits"):
        body = client.get(address, params={"q": HOSTILE}).text
        assert "<script>alert" not in body
        assert "&lt;script&gt;" in body


def test_an_empty_search_finds_nothing(empty: TestClient) -> None:
    """Without words and without data there is nothing to list."""
    assert hits(empty, "") == []
    assert hits(empty, "lerp") == []


def figures(client: TestClient, address: str) -> list[str]:
    """Addresses of the CSV of a page's figures."""
    found = re.findall(r'<figcaption><a href="([^"]+)"', client.get(address).text)
    return [unescape(one) for one in found]


def test_every_figure_has_its_data_as_csv(client: TestClient) -> None:
    """Each figure of a page leads to a table with a row per point, named series, and its unit."""
    case = next(href for href, _ in hits(client, "seed-1") if href.startswith("/cases/"))
    for address in (case, "/ops/p_norm?device=all", "/roofline", "/coverage"):
        listed = figures(client, address)
        assert listed, address
        for one in listed:
            answer = client.get(one)
            assert answer.headers["content-type"].startswith("text/csv"), one
            rows = list(csv.DictReader(io.StringIO(answer.text)))
            assert rows, one


def test_a_history_as_csv_has_medians_and_intervals(client: TestClient) -> None:
    """A row per run and implementation; the interval surrounds the median."""
    case = next(href for href, _ in hits(client, "seed-1") if href.startswith("/cases/"))
    rows = list(csv.DictReader(io.StringIO(client.get(case, params={"csv": "history"}).text)))
    mine = [row for row in rows if row["series"] == "optimized"]
    assert len(mine) == 22
    time = next(name for name in mine[0] if name.startswith("y ("))
    low, high = (next(name for name in mine[0] if name.startswith(f"y_{end}")) for end in ("low", "high"))
    assert all(float(row[low]) <= float(row[time]) * (1 + 1e-6) <= float(row[high]) * (1 + 2e-6) for row in mine)


def test_formulas_in_names_are_no_formulas_in_csv() -> None:
    """A name that begins as a formula is quoted, so that a spreadsheet shows it."""
    from opgauge.web.charts import as_json
    from opgauge.web.figure_csv import figure_csv

    text = figure_csv(as_json([{"type": "bar", "name": "=1+1", "x": ["a"], "y": [1.0]}]))
    assert "\n=1+1" not in text
    assert "=1+1" in text


def test_an_unknown_figure_is_not_found(client: TestClient) -> None:
    """404 names what the page lacks."""
    answer = client.get("/roofline", params={"csv": "nothing"})
    assert answer.status_code == 404
    assert "nothing" in answer.text
