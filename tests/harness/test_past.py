"""Results of a case over many runs: in order, and of the last runs where there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from opgauge.harness.result.result import Environment, Footprint
from opgauge.harness.store import Store, past
from tests.databases import database
from tests.harness.test_submission import a_result


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four runs of two processes, by two implementations."""
    with database(tmp_path) as url, Store.open(url) as made:
        for _ in range(4):
            run = made.begin_run(Environment({}, {}))
            for name in ("optimized", "torch"):
                for block in (0, 1):
                    result = a_result(block=block)
                    assert result.measurement is not None
                    measurement = replace(result.measurement, peak_bytes=64, footprint=Footprint(3, ("k",), 0, 8, 0))
                    trial = replace(result.trial, implementation=name)
                    made.add_result(run, replace(result, trial=trial, measurement=measurement))
            made.finish_run(run)
        yield made


def test_a_history_has_results_by_run_and_in_order(store: Store) -> None:
    """With memory and launches as stored, of the asked runs and device only; times leave implementations out."""
    device = a_result().trial.device
    found = past.list_history(store.engine, [1], [2, 3], device)
    wanted = [(run, name, block) for run in (2, 3) for name in ("optimized", "torch") for block in (0, 1)]
    assert [(one.run_key, one.implementation, one.block) for one in found] == wanted
    assert {(str(one.peak_bytes), str(one.launches)) for one in found} == {("64", "3")}
    times = past.list_times(store.engine, [1], [2, 3], device, ["torch"])
    assert [(one.run_key, one.block, one.median_ns) for one in times] == [
        (one.run_key, one.block, one.median_ns) for one in found if one.implementation == "optimized"
    ]
    assert past.list_history(store.engine, [1], [2, 3], "cuda:7") == []


@pytest.mark.parametrize("chunk", [1, 2, 500])
@pytest.mark.parametrize(("most", "runs"), [(16, [1, 2, 3, 4]), (11, [3, 4]), (8, [3, 4]), (7, [4]), (3, [])])
def test_of_too_many_results_those_of_the_last_runs_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, chunk: int, most: int, runs: list[int]
) -> None:
    """A run is read whole or not at all: a part of its processes has another median."""
    monkeypatch.setattr(past, "MOST", most)
    monkeypatch.setattr(past, "CHUNK", chunk)
    found = past.list_history(store.engine, [1], [1, 2, 3, 4], a_result().trial.device)
    assert [one.run_key for one in found] == [run for run in runs for _ in range(4)]


def test_an_index_covers_the_times_of_a_history(store: Store) -> None:
    """SQLite reads no row of the wide table for them, and sorts nothing."""
    if store.engine.dialect.name != "sqlite":
        pytest.skip("another database has another plan for four runs")
    seen: list[tuple[str, Any]] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: seen.append((given[2], given[3])))
    past.list_times(store.engine, [1], [1, 2, 3, 4], a_result().trial.device, ["torch"])
    ((query, parameters),) = seen
    with store.engine.connect() as connection:
        plan = [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", parameters)]
    assert len(plan) == 1
    assert plan[0].startswith(
        "SEARCH result USING COVERING INDEX ix_result_history (case_key=? AND device=? AND run_id=?"
    )
