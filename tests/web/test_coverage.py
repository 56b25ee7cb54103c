"""The coverage page: ratios are of optimized over the fastest other, worst first, counted per op."""

from __future__ import annotations

import json
import re

from fastapi.testclient import TestClient

from tests.web.reading_pages import text_of
from tests.web.test_roofline import TIMES, a_run


def series(body: str) -> dict[str, list[float]]:
    """Ratios of the figure by op."""
    (text,) = re.findall(r'<script type="application/json" id="chart-coverage">(.*?)</script>', body, re.DOTALL)
    return {trace["name"]: trace["y"] for trace in json.loads(text)["data"]}


def test_ratios_are_those_of_the_stored_times(empty_copy: TestClient) -> None:
    """A point is the time of optimized over the least of baseline and peers; a case that lacks one has no point."""
    a_run(empty_copy, None)
    ratio = TIMES["optimized"] / TIMES["torch"]
    assert series(empty_copy.get("/coverage").text) == {"p_norm": [ratio], "flatten": [ratio]}
    assert series(empty_copy.get("/coverage?op=p_norm").text) == {"p_norm": [ratio]}
    assert "lerp" not in text_of(empty_copy.get("/coverage").text)


def test_the_worst_case_comes_first_and_ops_are_counted(client: TestClient) -> None:
    """The table of cases is sorted by ratio, the slowest first; each op has a line with its number of cases."""
    body = client.get("/coverage").text
    drawn = series(body)
    ratios = [float(text) for text in re.findall(r'<td class="num strong">([\d.e+-]+)</td><td>', body)]
    assert ratios == sorted(ratios, reverse=True)
    assert f"{max(map(max, drawn.values())):.3g}" == f"{ratios[0]:.3g}"
    for op, values in drawn.items():
        assert re.search(rf'<span class="op">{op}</span></th><td class="num">{len(values)}</td>', body), op


def test_a_run_without_results_says_so(empty_copy: TestClient) -> None:
    """Nothing is drawn of an empty store, and the first steps are named."""
    assert "No results yet" in text_of(empty_copy.get("/coverage").text)
