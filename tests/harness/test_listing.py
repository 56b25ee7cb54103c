"""Lists of the store: only what is asked for, in bounded work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opgauge.harness.result.result import Calibration, Environment, Footprint, Measurement, Result, Status
from opgauge.harness.store import Store, listing
from opgauge.harness.store.listing import Filters
from tests.harness.test_submission import a_result


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with one run: a result with all there is to judge, one with little, one that failed."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as made:
        run = made.begin_run(Environment({}, {}))
        for result in _results():
            made.add_result(run, result)
        made.finish_run(run)
        yield made


def _results() -> list[Result]:
    plain = a_result()
    measurement = plain.measurement or Measurement((1.0,), "", 0)
    footprint = Footprint(2, ("a<float, 4>", "b"), 1, 32, 0)
    whole = replace(measurement, peak_bytes=2**40, footprint=footprint)
    failed = replace(a_result(block=2), status=Status.ERROR, reason="why", measurement=None, check=None)
    return [replace(plain, measurement=whole, ruler=Calibration(1.0, 4.0, 3.0)), a_result(block=1), failed]


def test_what_a_comparison_judges_is_read_without_the_rest(store: Store) -> None:
    """Peak memory, footprint and calibration come as they were stored, null where there are none."""
    whole, plain, failed = listing.list_judged(store.engine, 1, 10)
    assert int(whole.peak or 0) == 2**40
    assert json.loads(whole.footprint or "")["kernels"] == ["a<float, 4>", "b"]
    assert json.loads(whole.calibration or "")["arithmetic_ns"] == 4.0
    assert {(one.peak, one.footprint, one.calibration) for one in (plain, failed)} == {(None, None, None)}
    assert (failed.status, failed.reason) == ("error", "why")


def test_filters_that_fit_nothing_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With windows of one result and no patience, each page is one step, and the last says so."""
    monkeypatch.setattr(listing, "WINDOW", 1)
    monkeypatch.setattr(listing, "PATIENCE_S", -1.0)
    before: int | None = None
    for rest in (3, 2, None):
        found, before = listing.page_results(store.engine, Filters(device="cuda:7"), before=before, limit=5)
        assert found == []
        assert before == rest
