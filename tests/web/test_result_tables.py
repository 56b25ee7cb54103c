"""Tables of results on pages, and the exports that they equal."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from fastapi.testclient import TestClient

from opgauge.harness.errors import NothingError
from opgauge.harness.report.export import as_csv, as_json, records, whole_run
from opgauge.harness.report.history import find_series
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import read_submission
from opgauge.harness.store import Store
from opgauge.web.table import written
from tests.web.dataset import ceilings, results
from tests.web.reading_pages import PLAIN, reader_of


def cells_of(table: str) -> list[list[str | float]]:
    """The cells of a table, numbers as such: 1e-6 and 1e-06 are the same."""

    def read(cell: str) -> str | float:
        try:
            return float(cell)
        except ValueError:
            return cell

    return [[read(cell) for cell in line] for line in csv.reader(io.StringIO(table))]


def test_a_table_is_that_of_the_results(client: TestClient) -> None:
    """Written past results, yet the same to the last cell: failures, profiles, hostile names."""
    reader = reader_of(client)
    with Store.open(str(reader.engine.url)) as store:
        for info in (reader.runs()[0], reader.runs()[-1]):
            found = as_csv(records(store.find_run(info.id), store.results(info.id), reader.ceilings(info)))
            table = client.get(f"/runs/{info.id}/export.csv").text
            assert cells_of(table) == cells_of(found)
            assert table.count('"') == found.count('"')


def test_a_table_tells_apart_works_of_one_size(empty_copy: TestClient) -> None:
    """Results of the same bytes and operations, which differ in what they read, write and declare."""
    extras: list[dict[str, object]] = [{}, {"reads": False}, {"reads": 0}, {"relaxed": 8.0}]
    extras += [{"written_share": share} for share in (0.25, 0.5, 1.0)]
    works = [(extra, flops) for flops in (1, 5 * 10**8) for extra in extras]
    reader = reader_of(empty_copy)
    with Store.open(str(reader.engine.url)) as store:
        name = store.begin_run(Environment({"cuda:0.model": "NVIDIA H200"}, {"commit": "1" * 40}))
        measured = (one for one in results(0, np.random.default_rng(0)) if one.measurement)
        made = [one for one in measured if (one.trial.device, one.trial.case.dtype) == ("cuda:0", "float32")]
        for (extra, flops), result in zip(works, made, strict=False):
            store.add_result(name, replace(result, bytes=10**8, flops=flops, extra=extra))
        peaks = {"float32": 1000.0, "tf32": 9000.0}
        store.add_ceilings(name, Ceilings("cuda:0", copy_gbps=1000.0, write_gbps=4000.0, matrix_gflops=peaks))
        store.finish_run(name)
        (info,) = reader.runs()
        found = records(store.find_run(name), store.results(name), reader.ceilings(info))
    assert len(found) == min(len(works), len(made))
    assert len({round(one["ceiling_share"] * one["median_ns"]) for one in found}) > 2
    assert cells_of(empty_copy.get(f"/runs/{name}/export.csv").text) == cells_of(as_csv(found))


def test_numbers_of_a_table_are_those_of_csv() -> None:
    """Nothing for what is not known, truths and infinities as Python writes them, every number to the last digit."""
    rows = [(None, True, False, math.inf, math.nan, 1e-7, 0.1 + 0.2, 2**62), (1, None, None, 1e22, 5e-324, 0.5, -1, 0)]
    first, second = (next(csv.reader([line])) for line in written(rows))
    assert first[:5] == ["", "True", "False", "inf", "nan"]
    assert [float(cell) for cell in first[5:7]] == [1e-7, 0.1 + 0.2]
    assert first[7] == str(2**62)
    assert second[1:3] == ["", ""]
    assert [float(cell) for cell in second[3:5]] == [1e22, 5e-324]
    assert written([]) == []


def test_an_exported_run_is_what_the_store_gives(client: TestClient) -> None:
    """Written past results, yet the same: samples, checks, profiles, failures, and it is read again."""
    reader = reader_of(client)
    with Store.open(str(reader.engine.url)) as store:
        for info in (reader.runs()[0], reader.runs()[-1]):
            run, results = store.find_run(info.id), store.results(info.id, samples=True)
            exported = client.get(f"/runs/{info.id}/export.json").json()
            assert exported == json.loads(as_json(whole_run(run, results, store.ceilings(info.id))))
            assert len(read_submission(exported).results) == len(results)


def test_a_median_of_0_has_no_rate(empty_copy: TestClient) -> None:
    """A clock may see nothing: pages, tables, exports and the history of such a run have a dash, or nothing."""
    reader = reader_of(empty_copy)
    with Store.open(str(reader.engine.url)) as store:
        name = store.begin_run(Environment({"cuda:0.model": "NVIDIA H200"}, {"commit": "1" * 40}))
        for result in results(0, np.random.default_rng(0)):
            if result.measurement is not None:
                measurement = replace(result.measurement, samples_ns=(0.0,) * 5)
                store.add_result(name, replace(result, measurement=measurement))
        for peaks in ceilings():
            store.add_ceilings(name, peaks)
        store.finish_run(name)
        (info,) = reader.runs()
        found = as_csv(records(store.find_run(name), store.results(name), reader.ceilings(info)))
        assert cells_of(empty_copy.get(f"/runs/{name}/export.csv").text) == cells_of(found)
        with pytest.raises(NothingError):
            find_series(store.engine, "rows-64")
    cases = [f"/cases/{case_id}" for case_id in reader.recent().cases]
    for address in (*PLAIN, *cases, f"/runs/{name}", "/ops/p_norm", "/devices?op=lerp"):
        assert empty_copy.get(address).status_code == 200, address
