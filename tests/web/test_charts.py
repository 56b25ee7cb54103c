"""Figures: what goes to the browser is what Plotly knows, and no text of others is markup in it."""

from __future__ import annotations

import json
import re
from html import unescape

import plotly.graph_objects as go
import pytest
from fastapi.testclient import TestClient

from opgauge.web.charts import literal, unit_of
from tests.web.dataset import HOSTILE
from tests.web.reading_pages import addresses


def test_every_figure_is_one_that_plotly_knows(client: TestClient) -> None:
    """Plotly's own check takes each figure of each page, names, types and values."""
    kinds = set()
    for address in addresses(client):
        body = client.get(address).text
        for name, text in re.findall(
            r'<script type="application/json" id="chart-([^"]+)">(.*?)</script>', body, re.DOTALL
        ):
            figure = go.Figure(json.loads(text))
            assert len(figure.data) > 0
            kinds.add(name)
    assert kinds == {"bars", "coverage", "roofline", "history", "samples", "kernels", "ratios", "memory", "trend"}


@pytest.mark.parametrize("text", [HOSTILE, "<a href='javascript:x'>y</a>", "$x^2$", "&lt;b&gt;"])
def test_literal_text_has_no_markup(text: str) -> None:
    """No tag, no formula; what is shown is the text itself."""
    shown = literal(text)
    assert "<" not in shown
    assert "$" not in shown
    assert unescape(shown) == text


@pytest.mark.parametrize(("largest", "unit"), [(0.0, "ns"), (999.0, "ns"), (1e3, "µs"), (2.5e6, "ms"), (3e9, "s")])
def test_times_are_drawn_in_the_unit_that_fits(largest: float, unit: str) -> None:
    """By the largest of them; without any, nanoseconds."""
    assert unit_of([None, largest / 7, largest])[0] == unit
