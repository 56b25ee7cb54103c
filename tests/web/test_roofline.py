"""The roofline of all ops: every number in it, roofs that were measured and those that were not, what has no place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import plotly.graph_objects as go
import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from tests.web.dataset import HARD, HOSTILE, shapes
from tests.web.reading_pages import reader_of, text_of
from tests.web.submissions import store_of

TIMES = {"optimized": 1000.0, "torch": 4000.0}
GPU = Ceilings("cuda:0", 2000.0, 2000.0, {"float32": 50_000.0, "float16": 900_000.0}, 2000.0)


def results(device: str) -> Iterator[Result]:
    """A case of each op, each 1 or 4 µs, with flops and bytes that give round numbers; flatten has no flops."""
    work = {"p_norm": (1_000_000, 100_000_000), "lerp": (4_000_000, 1_000_000), "flatten": (4096, 0)}
    cases = {shape.case.op: shape.case for shape in reversed(shapes())}
    for op, (moved, flops) in work.items():
        for name, time in TIMES.items():
            if (op, name) == ("lerp", "torch"):
                continue
            trial = Trial(cases[op], name, device.partition(":")[0], device)
            check = Check(ok=True, max_abs_error=0.0, max_rel_error=0.0, worst=0.0)
            measured = Measurement((time,), "events 1", 1)
            yield Result(trial, Status.OK, bytes=moved, flops=flops, check=check, measurement=measured)


def a_run(client: TestClient, ceilings: Ceilings | None, device: str = "cuda:0", *, empty: bool = False) -> str:
    """A run of those in the store of a client."""
    store = store_of(client)
    run = store.begin_run(Environment(HARD, {}))
    if ceilings is not None:
        store.add_ceilings(run, ceilings)
    for result in () if empty else results(device):
        store.add_result(run, result)
    store.finish_run(run)
    return run


def figure(body: str) -> dict[str, Any]:
    """The data of the figure on a page, known to Plotly."""
    (text,) = re.findall(r'<script type="application/json" id="chart-roofline">(.*?)</script>', body, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    go.Figure(found)
    return found


def series(body: str) -> dict[str, dict[str, Any]]:
    """Its series by name."""
    return {one["name"]: one for one in figure(body)["data"]}


def table(body: str) -> list[list[str]]:
    """The cells of the table, row by row."""
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", body, re.DOTALL)
    return [[text_of(cell) for cell in re.split(r"</t[hd]>", row)[:-1]] for row in rows]


def test_every_number_is_that_of_the_run(empty_copy: TestClient) -> None:
    """Intensity, rate, time and share of each point; where the roofs begin, meet and end; the table says the same."""
    run = a_run(empty_copy, GPU)
    body = empty_copy.get(f"/roofline?run={run}").text
    found = series(body)
    slope, rate = "copy 2000 GB/s", "float32 matrix 50 TFLOP/s"
    assert list(found) == ["lerp", "p_norm", slope, rate]
    assert (found["p_norm"]["x"], found["p_norm"]["y"]) == ([100.0], [100_000.0])
    assert (found["lerp"]["x"], found["lerp"]["y"]) == ([0.25], [1000.0])
    assert found["p_norm"]["customdata"] == [["1 µs", "200 %"]]
    assert found["lerp"]["customdata"] == [["1 µs", "200 %"]]
    assert found["lerp"]["text"] == ["rows-64 · float32"]
    assert all(found["lerp"][part] != found["p_norm"][part] for part in ("meta", "marker"))
    assert (found[slope]["x"], found[slope]["y"]) == ([0.0625, 25.0], [125.0, 50_000.0])
    assert (found[rate]["x"], found[rate]["y"]) == ([3000.0, 25.0], [50_000.0, 50_000.0])
    assert [row[1:] for row in table(body)] == [
        ["float32", "1 µs", "0.25", "1000", "500", "200 %"],
        ["float32", "1 µs", "100", "100000", "50000", "200 %"],
    ]


def test_a_peer_is_drawn_where_it_is_chosen(empty_copy: TestClient) -> None:
    """Its times, in the colour that the op has for all; what it has no time of is counted."""
    a_run(empty_copy, GPU)
    ours = series(empty_copy.get("/roofline").text)["p_norm"]
    body = empty_copy.get("/roofline?implementation=torch").text
    theirs = series(body)
    assert "lerp" not in theirs
    assert theirs["p_norm"]["y"] == [25_000.0]
    assert [theirs["p_norm"][part] for part in ("meta", "marker")] == [ours["meta"], ours["marker"]]
    assert "1 case has no time of torch." in text_of(body)
    assert "<option selected>torch</option>" in body
    nobody = empty_copy.get("/roofline", params={"implementation": HOSTILE})
    assert "did not run here" in text_of(nobody.text)
    assert "<script>alert" not in nobody.text


def test_ops_without_flops_have_no_place_and_are_named(empty_copy: TestClient) -> None:
    """A copy is neither drawn nor in the table, and the page says so."""
    a_run(empty_copy, GPU)
    body = empty_copy.get("/roofline").text
    assert "No place here: flatten (1)" in text_of(body)
    assert not any("alert" in row[0] for row in table(body))
    assert len(table(body)) == 2


@pytest.mark.parametrize(
    ("ceilings", "lines", "roofs"),
    [
        (Ceilings("cpu", 20.0), ["copy 20 GB/s"], ["5", "2000"]),
        (Ceilings("cpu", None, None, {"float32": 500.0}), ["float32 matrix 500 GFLOP/s"], ["500", "500"]),
        (Ceilings("cpu", 20.0, None, {"float64": 500.0}), ["copy 20 GB/s"], ["5", "2000"]),
        (Ceilings("cpu"), [], ["–", "–"]),
        (None, [], ["–", "–"]),
    ],
    ids=["copy only", "matrix only", "matrix of another dtype", "nothing reached", "nothing asked"],
)
def test_only_what_was_measured_is_a_roof(
    empty_copy: TestClient, ceilings: Ceilings | None, lines: list[str], roofs: list[str]
) -> None:
    """A CPU's run without matrix rates has the slope alone; one without ceilings has points, and no share."""
    a_run(empty_copy, ceilings, "cpu")
    body = empty_copy.get("/roofline").text
    assert list(series(body)) == ["lerp", "p_norm", *lines]
    assert [row[5] for row in table(body)] == roofs
    assert (table(body)[0][6] == "–") is (ceilings is None or ceilings == Ceilings("cpu"))


def test_the_slope_goes_on_for_dtypes_without_a_rate(empty_copy: TestClient) -> None:
    """A dtype of which no product was measured has the slope as its roof, as far as its last point."""
    rates = {"float32": 50_000.0}
    with_halves = a_run(empty_copy, Ceilings("cuda:0", 2000.0, None, rates))
    store = store_of(empty_copy)
    half = next(one.case for one in shapes() if one.case.dtype == "float16")
    trial = Trial(half, "optimized", "cuda", "cuda:0")
    measured = Measurement((1000.0,), "events 1", 1)
    store.add_result(with_halves, Result(trial, Status.OK, bytes=1000, flops=80_000, measurement=measured))
    found = series(empty_copy.get("/roofline").text)
    assert found["copy 2000 GB/s"]["x"][1] == 80.0
    assert found["float32 matrix 50 TFLOP/s"]["x"][1] == 25.0


def test_names_of_neighbouring_roofs_are_stacked(empty_copy: TestClient) -> None:
    """Names that would overlap are lines of one label, above the highest roof; others stay at their own."""
    with_halves = a_run(empty_copy, Ceilings("cuda:0", 2000.0, None, {"float32": 51_000.0, "float16": 65_000.0}))
    half = next(one.case for one in shapes() if one.case.dtype == "float16")
    measured = Measurement((1000.0,), "events 1", 1)
    store = store_of(empty_copy)
    trial = Trial(half, "optimized", "cuda", "cuda:0")
    store.add_result(with_halves, Result(trial, Status.OK, bytes=1000, flops=80_000, measurement=measured))
    high, low = "float16 matrix 65 TFLOP/s", "float32 matrix 51 TFLOP/s"
    found = series(empty_copy.get("/roofline").text)
    assert (found[high]["text"], found[low]["text"]) == ([f"{high}<br>{low}", ""], ["", ""])
    a_run(empty_copy, Ceilings("cuda:0", 2000.0, None, {"float32": 51_000.0, "float16": 650_000.0}))
    assert series(empty_copy.get("/roofline").text)[low]["text"] == [low, ""]


def test_a_run_without_results_says_so(empty_copy: TestClient) -> None:
    """Neither a figure nor an error, and the way to the others."""
    run = a_run(empty_copy, GPU, empty=True)
    answer = empty_copy.get(f"/roofline?run={run}")
    assert answer.status_code == 200
    assert "This run has no results yet" in text_of(answer.text)
    assert "chart-roofline" not in answer.text


def test_a_run_leads_to_its_own_roofline(client: TestClient) -> None:
    """By a link; without `run` each case is of the latest run that has it."""
    runs = reader_of(client).runs()
    for run in (runs[0], runs[-1]):
        body = client.get(f"/runs/{run.id}").text
        link = re.search(r'href="(/roofline\?[^"]+)"', body)
        assert link is not None
        assert run.id[:8] in text_of(client.get(unescape(link.group(1))).text)
    assert runs[0].id[:8] in text_of(client.get("/roofline").text)


def test_filters_by_device_and_dtype(client: TestClient) -> None:
    """A GPU unless another is asked for; a dtype leaves its cases and its roof."""
    slugs = {slug.partition("-")[0]: slug for slug in reader_of(client).recent().devices}
    everything = client.get("/roofline").text
    assert len(table(everything)) == 5
    assert "copy 4100 GB/s" in series(everything)
    assert "copy 180 GB/s" in series(client.get(f"/roofline?device={slugs['cpu']}").text)
    halves = client.get("/roofline?dtype=float16").text
    assert {row[1] for row in table(halves)} == {"float16"}
    assert [any("float32 matrix" in name for name in series(one)) for one in (everything, halves)] == [True, False]
    assert "left by these filters" in text_of(client.get("/roofline?dtype=int8").text)
