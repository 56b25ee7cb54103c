"""The share of the bound in tables: by the peak of what a case reads and writes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.case.case import Case
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from opgauge.ops import find_op
from opgauge.web.rows import rows_of
from tests.web.dataset import HARD
from tests.web.reading_pages import reader_of
from tests.web.submissions import store_of

SIZE, TIME_NS = 1 << 20, 1000.0
PEAKS = Ceilings("cuda:0", sizes=(SIZE,), copies_ns=(600.0,), writes_ns=(400.0,), reads_ns=(200.0,))
"""Reads are faster than writes, and these than copies."""


def result(op: str, shape: tuple[int, ...], written_share: float | None) -> Result:
    """A result of a case that moves `SIZE` bytes in `TIME_NS`."""
    case = Case(op, f"{op}-{written_share}", {"x": shape}, "float32", find_op(op).params())
    trial = Trial(case, "optimized", "cuda", "cuda:0")
    check = Check(ok=True, max_abs_error=0.0, max_rel_error=0.0, worst=0.0)
    extra = {} if written_share is None else {"written_share": written_share}
    measured = Measurement((TIME_NS,), "events 1", 1)
    return Result(trial, Status.OK, bytes=SIZE, flops=0, check=check, measurement=measured, extra=extra)


@pytest.mark.parametrize(
    ("op", "written_share", "share"),
    [("mean", 0.0, 0.2), ("fill_any_like", 1.0, 0.4), ("scale", 0.5, 0.6), ("sign", None, 0.6), ("sign", 9.0, 0.6)],
)
def test_the_share_of_the_bound_is_by_reads_and_writes(
    empty_copy: TestClient, op: str, written_share: float | None, share: float
) -> None:
    """A reduction is compared with reads, a fill with writes, and an unknown share with a copy."""
    store = store_of(empty_copy)
    run = store.begin_run(Environment(HARD, {}))
    store.add_ceilings(run, PEAKS)
    store.add_result(run, result(op, (512, 512), written_share))
    store.finish_run(run)
    reader = reader_of(empty_copy)
    (info,) = (one for one in reader.runs() if one.id == run)
    (row,) = rows_of(reader, info)
    assert row.share() == pytest.approx(share)


@pytest.mark.parametrize("most", ["NVIDIA A", "NVIDIA B", "NVIDIA C"])
def test_pages_begin_with_the_gpu_that_has_most_of_the_data(empty_copy: TestClient, most: str) -> None:
    """Not with a GPU that measured one case once, whatever its name, nor with a CPU that measured more."""
    store = store_of(empty_copy)
    one, two = result("scale", (64,), 0.5), result("sign", (64,), 0.5)
    for model in ("NVIDIA A", "NVIDIA B", "NVIDIA C", "", most):
        run = store.begin_run(Environment({"cuda:0.model": model, "cpu.model": "a CPU"}, {"commit": "1" * 40}))
        for found in (one, two) if model == most else (one,):
            store.add_result(run, found)
            store.add_result(run, replace(found, trial=replace(found.trial, backend="cpu", device="cpu")))
        store.finish_run(run)
    case = one.trial.case.id
    for address in (f"/cases/{case}", "/ops/scale", "/coverage", "/devices"):
        body = empty_copy.get(address).text
        assert re.search(rf'<option value="cuda0-[0-9a-f]{{6}}" selected>{most} ', body), address
