"""Trends of ops, of memory and launches; devices and several runs beside each other; order of tables."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from math import exp, log
from statistics import fmean

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.store.past import Past
from opgauge.web.device_comparison import device_standings
from opgauge.web.history_figure import timeline
from opgauge.web.rows import devices_of, latest_rows
from opgauge.web.side_by_side import side_by_side
from opgauge.web.trends import op_trend, resource_figures
from tests.web.dataset import REPAIR_FROM, REPAIRED_AT
from tests.web.reading_pages import case_id, reader_of, text_of


def gpu(client: TestClient) -> str:
    """Slug of the GPU."""
    return next(slug for slug, device in reader_of(client).recent().devices.items() if device.name != "cpu")


def test_the_trend_of_an_op_is_the_mean_over_its_cases(client: TestClient) -> None:
    """A step of 30 % in one of two cases moves the geometric mean by 14 %, within the interval over the cases."""
    points = op_trend(reader_of(client).recent(), "lerp", gpu(client))
    stepped = [point.ratio for point in points[REPAIR_FROM:REPAIRED_AT]]
    assert fmean(stepped) == pytest.approx(1.3**0.5, rel=0.01)
    assert fmean(point.ratio for point in points[:REPAIR_FROM]) == pytest.approx(1, rel=0.01)
    assert all(point.low <= point.ratio <= point.high for point in points)
    # with two cases Student's interval has one degree of freedom: t is 12.7 times the standard error
    assert points[8].cases == 2
    assert log(points[8].high / points[8].ratio) == pytest.approx(12.706 * log(1.3) / 2, rel=0.15)


def test_one_case_has_no_interval(client: TestClient) -> None:
    """A mean over one case has nothing to tell its variation from."""
    for point in op_trend(reader_of(client).recent(), "flatten", gpu(client)):
        assert point.low == point.ratio == point.high


def test_memory_and_launches_are_drawn_by_commit(client: TestClient) -> None:
    """Peak memory that was stored is drawn for every run; launches that were not are no figure."""
    identifier = case_id(client, "rows-64")
    answer = client.get(f"/cases/{identifier}", params={"device": gpu(client), "csv": "memory"})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {float(row["y (KiB)"]) for row in rows} == {4}
    assert client.get(f"/cases/{identifier}", params={"csv": "launches"}).status_code == 404


def test_launches_of_two_runs_are_a_figure(client: TestClient) -> None:
    """A change from three launches to one is drawn at its commit."""
    history = reader_of(client).history()
    first, second = history.runs[:2]
    counts: dict[int, str | int] = {first.key: "3", second.key: 1, history.runs[2].key: 9}
    found = [Past(key, "optimized", 0, "ok", 1.0, 1.0, 1.0, None, count) for key, count in counts.items()]
    memory, launches = resource_figures(found, [first, second], timeline(reader_of(client)))
    assert memory is None
    assert launches is not None
    assert '"y":[3,1]' in launches.replace(" ", "")


def test_devices_are_compared_on_common_cases(client: TestClient) -> None:
    """The CPU of the dataset takes 14 times as long as the GPU, in every op but the stepped one."""
    rows = latest_rows(reader_of(client))
    standings = device_standings(rows, devices_of(rows), gpu(client))
    cpu = next(slug for slug in standings["flatten"] if slug.startswith("cpu"))
    assert standings["flatten"][cpu].speedup == pytest.approx(1 / 14, rel=0.05)
    alone = [row for row in rows if row.device.slug == cpu]
    assert device_standings(alone, devices_of(alone), gpu(client))["flatten"][cpu].speedup is None


def test_several_runs_are_compared_with_one_base(client: TestClient) -> None:
    """Each run has a column; cells equal those of the comparison of two, and the broken case comes first."""
    reader = reader_of(client)
    runs = reader.runs()
    rows = side_by_side(reader, runs[9], [runs[1], runs[0]])
    assert "broken" in rows[0].words
    row = next(one for one in rows if one.case.name == "rows-256" and one.implementation == "optimized" and one.base_ns)
    assert [cell is not None for cell in row.cells] == [True, True]
    page = client.get("/compare", params={"base": runs[9].id, "head": [runs[1].id, runs[0].id]})
    assert page.status_code == 200
    assert text_of(page.text).count(runs[0].id[:8]) >= 2
    single = client.get("/compare", params={"base": runs[9].id, "head": [runs[0].id, ""]})
    assert "Differences of environment" in single.text


def test_too_many_runs_are_refused(client: TestClient) -> None:
    """Nine heads are no page."""
    assert client.get("/compare", params={"base": "a", "head": ["b"] * 9}).status_code == 422


def test_comparisons_are_sorted_as_asked(client: TestClient) -> None:
    """By head the longest time comes first; the choice stays in the address of other links."""
    runs = reader_of(client).runs()
    given = {"base": runs[9].id[:8], "head": runs[1].id[:8], "sort": "head"}
    body = client.get("/compare", params=given).text
    assert 'aria-sort="descending"' in body
    pattern = r'</td><td class="num">[^<]*</td><td class="num">([\d.]+) (ns|µs|ms)</td><td class="num">[^<]*</td>'
    times = re.findall(pattern, body)
    values = [float(number) * {"ns": 1e-3, "µs": 1, "ms": 1e3}[unit] for number, unit in times]
    assert values == sorted(values, reverse=True) != []
    assert "sort=head" in body


def test_links_keep_repeated_parameters(client: TestClient) -> None:
    """A filter of several runs leaves both in the address."""
    runs = reader_of(client).runs()
    body = client.get("/compare", params={"base": runs[9].id[:8], "head": [runs[1].id[:8], runs[0].id[:8]]}).text
    link = next(one for one in re.findall(r'href="(/compare\?[^"]+)"', body) if "verdict=" in one)
    assert link.count("head=") == 2


def test_the_trend_is_of_times_against_usual(client: TestClient) -> None:
    """Scaling every time of a series leaves its trend."""
    recent = reader_of(client).recent()
    doubled = {
        key: [level._replace(median_ns=2 * level.median_ns if level.median_ns else None) for level in levels]
        for key, levels in recent.series.items()
    }
    before = op_trend(recent, "p_norm", gpu(client))
    after = op_trend(replace(recent, series=doubled), "p_norm", gpu(client))
    assert [point.ratio for point in after] == pytest.approx([point.ratio for point in before])
    assert exp(fmean(log(point.ratio) for point in before)) == pytest.approx(1, rel=0.2)
