"""Runs whose commit time cannot be: the pages place them by when they were measured, and say so."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.submission import read_submission
from opgauge.harness.store.bulk import add_run
from tests.web.dataset import START
from tests.web.reading_pages import case_id, reader_of, text_of
from tests.web.submissions import STARTED, a_run, store_of

CASE = "seed-1[float32,porder=2]"


@pytest.mark.parametrize("when", ["2099-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00Z"])
def test_an_impossible_commit_time_stretches_no_axis(writable: TestClient, when: str) -> None:
    """Nor does the run stay the latest one for ever: one that is measured later is."""
    sent = []
    for day, given in ((1, when), (2, "2026-02-02T00:00:00+00:00")):
        run = a_run(8)
        run["run"]["environment"]["hard"] = dict(reader_of(writable).runs()[0].environment.hard)
        run["run"]["environment"]["soft"] = {"commit": f"{day}e" * 20, "branch": "main", "commit_time": given}
        run["run"]["started"] = run["run"]["finished"] = STARTED.replace(day=day).isoformat()
        add_run(store_of(writable).engine, read_submission(run))
        sent.append(run["run"]["id"])
    assert [run.id for run in reader_of(writable).history().runs[-2:]] == sent
    case = f"/cases/{case_id(writable, CASE)}?device=" + next(
        slug for slug, device in reader_of(writable).recent().devices.items() if device.name == "cpu"
    )
    page = writable.get(case).text
    figure = json.loads(page.partition('id="chart-history">')[2].partition("</script>")[0])
    dates = [date for trace in figure["data"] for date in trace["x"]]
    assert START.isoformat(" ")[:10] <= min(dates)
    assert max(dates) < "2026-02-03"
    assert "1 run gives a time of its commit that cannot be; it is placed" in text_of(page)
    said = "The time of the commit that this run gives cannot be"
    assert [said in writable.get(f"/runs/{run}").text for run in sent] == [True, False]
