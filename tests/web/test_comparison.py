"""Comparisons of stored runs, and where cases were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from opgauge.harness.judge.verdict import Rule, Side
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import read_submission
from opgauge.harness.store import Store, bulk, queries
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.tables import ResultRow
from opgauge.web import comparison
from opgauge.web.cache import Cache
from opgauge.web.compared_trial import ComparedTrial
from opgauge.web.comparison import compare_runs
from opgauge.web.devices import Places
from opgauge.web.reader import Reader
from opgauge.web.rows import rows_of
from opgauge.web.steady import SteadySeries
from tests.databases import SERVER, database
from tests.web.dataset import broken, ceilings, results
from tests.web.submissions import a_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with database(tmp_path) as url, Store.open(url) as made:
        yield made


def add(store: Store, run: int, *, bad: int = -1, without: int = -1, factor: float = 1.0, peak_bytes: int = 0) -> str:
    """A run of one block, in which one result is broken and one is left out."""
    name = store.begin_run(Environment({"cuda:0.model": "a GPU"}, {"commit": f"{run:040x}"}))
    for place, result in enumerate(results(run, np.random.default_rng(run))):
        found = broken(result) if place == bad else result
        if found.measurement is not None:
            samples = tuple(time * factor for time in found.measurement.samples_ns)
            measurement = replace(found.measurement, samples_ns=samples, peak_bytes=peak_bytes)
            found = replace(found, measurement=measurement)
        if place != without:
            store.add_result(name, found)
    store.finish_run(name)
    return name


def test_single_blocks_are_judged_alike(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged once for all that are alike, they get the words, reasons and ratios that each would get by itself."""
    add(store, 1, bad=3, without=5)
    add(store, 2, bad=7, without=9, factor=1.25)
    reader = Reader(store, Cache(lambda: 0))
    head, base = reader.runs()
    quick = compare_runs(reader, base, head)
    assert len({one.word for one in quick}) > 2
    assert any(one.ratio is not None for one in quick)
    monkeypatch.setattr(comparison, "_compare_single", lambda *_: None)
    assert compare_runs(reader, base, head) == quick


def test_two_ordinary_runs_are_slower_or_faster(store: Store) -> None:
    """One process each: three times the time is slower, a third of it faster, two percent undecided."""
    for number, factor in enumerate((1.0, 3.0, 1.0, 1.02)):
        add(store, number + 1, factor=factor)
    reader = Reader(store, Cache(lambda: 0))
    runs = reader.runs()[::-1]
    for base, head, word in ((0, 1, "slower"), (1, 2, "faster"), (2, 3, "undecided")):
        words = {one.word for one in compare_runs(reader, runs[base], runs[head]) if one.ratio}
        assert words == {word}


def test_a_count_that_decides_stands_beside_the_verdict(empty_copy: TestClient) -> None:
    """More peak memory is "slower" where the time is not: the page says by what, and not where the time decided."""
    app = empty_copy.app
    assert isinstance(app, FastAPI)
    for number, (factor, peak) in enumerate(((1.0, 0), (0.99, 1 << 20), (3.0, 1 << 20))):
        add(app.state.store, number + 1, factor=factor, peak_bytes=peak)
    reader: Reader = app.state.reader
    first, second, third = reader.runs()[::-1]
    assert {one.is_by_count for one in compare_runs(reader, first, second) if one.word == "slower"} == {True}
    assert not any(one.is_by_count for one in compare_runs(reader, second, third))
    for base, head, is_said in ((first, second, True), (second, third, False)):
        text = empty_copy.get(f"/compare?base={base.id}&head={head.id}").text
        assert ("by more peak memory" in text) is is_said


@pytest.mark.parametrize(("dtype", "is_known"), [("float32", False), ("float16", True), ("float64", True)])
def test_products_of_float32_may_round_to_tf32(dtype: str, is_known: bool) -> None:
    """On a GPU the rate of float32 products is no proof against a kernel that rounds to TF32; other rates are."""
    case = CaseInfo(1, "0" * 16, "op", dtype, {})
    trial = ComparedTrial(case, Rule(), "cuda:0", 1 << 20, 10**12, None, (1e6,), (), Side())
    peaks = Ceilings("cuda:0", 4100.0, 3900.0, {dtype: 50000.0}, 2100.0)
    assert (comparison._floor_ns(trial, {"cuda:0": peaks}) is not None) == is_known


def test_faster_than_the_device_allows_is_broken(store: Store) -> None:
    """Times a thousand times shorter are below the peaks of the head's run, and are judged as `run` judges them."""
    add(store, 1)
    fast = add(store, 2, factor=1e-3)
    for peaks in ceilings():
        store.add_ceilings(fast, peaks)
    reader = Reader(store, Cache(lambda: 0))
    head, base = reader.runs()
    found = [one for one in compare_runs(reader, base, head) if one.device == "cuda:0" and one.head_ns]
    below = [one for one in found if one.reason == "faster than the device allows"]
    assert len(below) > len(found) / 2
    assert {one.word for one in below} == {"broken"}


def test_the_noise_of_a_series_decides(store: Store) -> None:
    """Eight percent are slower for series that vary by a percent between ten runs, and undecided without them."""
    add(store, 1)
    add(store, 2, factor=1.08)
    reader = Reader(store, Cache(lambda: 0))
    head, base = reader.runs()
    assert {one.word for one in compare_runs(reader, base, head) if one.ratio} == {"undecided"}
    for number in range(3, 13):
        add(store, number)
    add(store, 13, factor=1.12)
    reader = Reader(store, Cache(lambda: 0))
    head, base = reader.runs()[:2]
    words = [one.word for one in compare_runs(reader, base, head) if one.ratio and one.device == "cuda:0"]
    assert words.count("slower") > 0.9 * len(words)


@pytest.mark.parametrize(
    ("lengths", "left_out", "kept"),
    [
        ((2, 37, 1), (38, 39), range(2, 38)),
        ((2, 37, 1), (0, 29), [*range(2, 29), *range(30, 39)]),
        ((1, 2), (1, 2), [0]),
        ((0,), (), []),
    ],
)
def test_the_longest_part_describes_a_series(
    lengths: tuple[int, ...], left_out: tuple[int, ...], kept: Sequence[int]
) -> None:
    """Runs of the compared pair are no part of it, and do not count for the length either."""
    parts = np.repeat(np.arange(len(lengths), dtype=np.int16), lengths)
    width = max(parts.size, 1)
    parts = np.stack([np.resize(parts, width) if parts.size else np.full(1, -1), np.zeros(width)]).astype(np.int16)
    logs = np.stack([np.arange(width, dtype=np.float64), np.zeros(width)])
    rows = {(name, "optimized", "cuda0-000000"): row for row, name in enumerate("ab")}
    logs, known = SteadySeries({}, rows, logs, parts).longest_parts(list(rows), left_out)
    assert logs[0][known[0]].tolist() == list(kept)


def test_a_run_of_two_processes_has_the_median_that_its_case_has(store: Store) -> None:
    """The mean of both, on the page of the comparison as on that of the case."""
    name = store.begin_run(Environment({"cuda:0.model": "a GPU"}, {"commit": "0" * 40}))
    for block in (0, 1):
        for result in results(1, np.random.default_rng(block)):
            store.add_result(name, replace(result, block=block))
    store.finish_run(name)
    reader = Reader(store, Cache(lambda: 0))
    (run,) = reader.runs()
    rows = {(row.case.case_id, row.device.name): row for row in rows_of(reader, run)}
    found = [one for one in compare_runs(reader, run, run) if one.base_ns]
    assert found
    for one in found:
        assert one.base_ns == one.head_ns == rows[one.case.case_id, one.device].time_ns(one.implementation)


def test_places_are_added_to(store: Store) -> None:
    """Read at once or run by run, they are those of the results."""
    grown = Places(store.engine)
    for run in (1, 2):
        add(store, run)
        grown.advance()
    whole = Places(store.engine)
    whole.advance()
    with store.engine.connect() as connection:
        rows = connection.execute(select(ResultRow.case_key, ResultRow.device, ResultRow.run_id)).all()
    for case_key in {row[0] for row in rows}:
        wanted: dict[str, set[int]] = {}
        for _, device, run_key in (row for row in rows if row[0] == case_key):
            wanted.setdefault(device, set()).add(run_key)
        assert grown.of([case_key]) == whole.of([case_key]) == wanted
    assert grown.of([0]) == {}


@pytest.mark.skipif(not SERVER, reason="SQLite has one writer: python -m tests.postgresql")
def test_results_that_are_committed_late_are_not_overlooked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is being entered while another host enters a result: whoever commits first, both have their places."""
    inside, go_on, enter = Event(), Event(), bulk._enter_results

    def enter_slowly(*given: Any) -> None:
        enter(*given)
        inside.set()
        go_on.wait(30)

    monkeypatch.setattr(bulk, "_enter_results", enter_slowly)
    other = store.begin_run(Environment({"cuda:0.model": "a GPU"}, {"commit": "a" * 40}))
    result = next(iter(results(1, np.random.default_rng(1))))
    grown = Places(store.engine)
    threads = [
        Thread(target=bulk.add_run, args=(store.engine, read_submission(a_run()))),
        Thread(target=store.add_result, args=(other, result)),
    ]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    threads[1].join(1)
    grown.advance()
    go_on.set()
    for thread in threads:
        thread.join()
    whole = Places(store.engine)
    for places in (grown, whole):
        places.advance()
    keys = [case.key for case in queries.list_cases(store.engine)]
    assert grown.of(keys) == whole.of(keys)
    assert len(frozenset().union(*whole.of(keys).values())) == 2


def test_a_run_that_came_is_on_the_page_of_its_case(writable: TestClient) -> None:
    """On both of its devices: places are looked up again with every version of the data."""
    app = writable.app
    assert isinstance(app, FastAPI)
    reader: Reader = app.state.reader
    keys = [case.key for case in reader.recent().cases.values()][:1]
    before = {slug: len(runs) for slug, (_, runs) in reader.places(keys).items()}
    add(app.state.store, 1)
    assert sum(len(runs) for _, runs in reader.places(keys).values()) == sum(before.values()) + 2
