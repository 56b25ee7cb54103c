"""Rows, ratios, shares of a ceiling, tables and exports, from made-up results."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from opgauge.harness.case.case import Case
from opgauge.harness.measure.cuda import CudaTimer
from opgauge.harness.report import export, render
from opgauge.harness.report.columns import print_columns
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Check, Environment, Footprint, Measurement, Result, Status, Trial
from opgauge.harness.result.summary import rows, share_of_ceiling, sort_rows
from opgauge.harness.result.time_text import time_text
from opgauge.harness.store import Run
from opgauge.ops import find_op

CEILINGS = {"cpu": Ceilings("cpu", copy_gbps=10.0, matrix_gflops={"float32": 100.0})}
RUN = Run("r", datetime(2026, 1, 1, tzinfo=UTC), None, "finished", "c", "", Environment({}, {}), 3)


def a_result(
    implementation: str, median_ns: float, *, name: str = "a", status: Status = Status.OK, flops: int = 0
) -> Result:
    """A result with one sample; cases of different names differ in shape too."""
    case = Case("sign", name, {"x": (len(name), 8)}, "float32", find_op("sign").params())
    measurement = Measurement((median_ns,), "test", 0) if status is Status.OK else None
    check = Check(ok=True, max_abs_error=0.0, max_rel_error=0.0, worst=0.0)
    trial = Trial(case, implementation, "cpu", "cpu")
    return Result(trial, status, check=check, measurement=measurement, bytes=1000, flops=flops, reason="=1+1")


def test_rows_set_implementations_side_by_side() -> None:
    """One row per case; speed-up over baseline; ratio to the fastest peer, slower ones aside."""
    found = rows(
        [
            a_result("baseline", 1000.0),
            a_result("optimized", 200.0),
            a_result("torch", 800.0),
            a_result("torch_compile", 400.0),
        ]
    )
    assert len(found) == 1
    assert found[0].speedup == 5.0
    assert found[0].against_peer == 0.5


def test_what_is_not_ok_has_no_ratio() -> None:
    """A wrong result's time counts for nothing."""
    (row,) = rows([a_result("baseline", 1.0, status=Status.WRONG), a_result("optimized", 1.0)])
    assert row.speedup is None


def test_share_of_the_ceiling_takes_the_harder_limit() -> None:
    """1000 bytes at 10 GB/s take 100 ns; 20,000 operations at 100 GFLOP/s take 200 ns."""
    assert share_of_ceiling(a_result("optimized", 400.0), CEILINGS) == 0.25
    assert share_of_ceiling(a_result("optimized", 400.0, flops=20_000), CEILINGS) == 0.5
    assert share_of_ceiling(a_result("optimized", 400.0), {}) is None


def test_sorting_by_slowest_against_peer() -> None:
    """The case that loses most to its best peer comes first."""
    results = [
        a_result("optimized", 100.0, name="a"),
        a_result("torch", 100.0, name="a"),
        a_result("optimized", 300.0, name="bb"),
        a_result("torch", 100.0, name="bb"),
    ]
    assert [row.case for row in sort_rows(rows(results), "slowest")] == ["bb", "a"]
    assert [row.case for row in sort_rows(rows(results), "name")] == ["a", "bb"]


def on_a_gpu(implementation: str, cold_ns: float, hot_ns: float | None) -> Result:
    """A result of a GPU with a hot figure."""
    given = a_result(implementation, cold_ns)
    return replace(
        given,
        trial=replace(given.trial, backend="cuda", device="cuda:0"),
        measurement=Measurement((cold_ns,), "test", 0, hot_ns=hot_ns),
    )


@pytest.mark.parametrize(
    ("cold", "hot", "decides", "ratio"),
    [
        ((9_000.0, 8_000.0), (3_000.0, 4_000.0), "hot", 0.75),
        ((20_000.0, 10_000.0), (3_000.0, 4_000.0), "cold", 2.0),
        ((9_000.0, 4_500.0), (3_000.0, None), "cold", 2.0),
    ],
)
def test_hot_figures_decide_below_ten_microseconds(
    cold: tuple[float, float], hot: tuple[float, float | None], decides: str, ratio: float
) -> None:
    """Where launches rule the ratio of hot figures counts, if both have one; else that of cold ones."""
    (row,) = rows([on_a_gpu("optimized", cold[0], hot[0]), on_a_gpu("torch", cold[1], hot[1])])
    assert (row.decides, row.deciding) == (decides, ratio)
    out = io.StringIO()
    print_columns(render.against_peers([row], {}), Console(file=out, width=100))
    assert f"{'faster' if ratio < 1 else 'slower'} ({decides})" in out.getvalue()


def test_what_launches_nothing_has_no_hot_figure() -> None:
    """A view takes no time on the device: what was found then is noise, and decides nothing."""
    ours, theirs = (on_a_gpu(name, 1_300.0, hot_ns) for name, hot_ns in (("optimized", 0.8), ("torch", 0.6)))
    assert ours.measurement is not None
    idle = replace(ours, measurement=replace(ours.measurement, footprint=Footprint(launches=0)))
    (row,) = rows([idle, theirs])
    assert (row.decides, row.standing, row.hot_ns("optimized"), row.hot_ns("torch")) == ("cold", "faster", None, 0.6)


@pytest.mark.parametrize(
    ("cold_ns", "standing"), [(20_000.0, "faster"), (20_300.0, "within noise"), (20_500.0, "slower")]
)
def test_a_small_difference_is_within_noise(cold_ns: float, standing: str) -> None:
    """Up to 2 % more than the limit is neither faster nor slower."""
    (row,) = rows([on_a_gpu("optimized", cold_ns, None), on_a_gpu("torch", 20_000.0, None)])
    assert row.standing == standing


def test_a_cpu_has_no_hot_figure() -> None:
    """Its caches are warm anyhow: the one time decides."""
    (row,) = rows([a_result("optimized", 100.0), a_result("torch", 200.0)])
    assert (row.decides, row.deciding, row.hot_against_peer) == ("cold", 0.5, None)


def test_tables_fit_and_name_what_is_wrong() -> None:
    """At 100 columns every line fits; a failure is named with its reason."""
    results = [a_result("baseline", 1e6), a_result("optimized", 2.5e4), a_result("torch", 0.0, status=Status.TIMEOUT)]
    out = io.StringIO()
    render.show(rows(results), results, CEILINGS, Console(file=out, width=100))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 100
    for part in ("1 ms", "25 µs", "40×", "timeout", "✗ torch", "copy 10 GB/s"):
        assert part in text


def test_a_time_with_gaps_is_marked_and_the_mark_told() -> None:
    """Where the host kept the device waiting between launches a time says so; no line explains what is not there."""
    given = on_a_gpu("baseline", 2e7, None)
    assert given.measurement is not None
    slow = replace(given, measurement=replace(given.measurement, timer=CudaTimer.name_with_gaps))
    texts = []
    for baseline in (slow, given):
        out = io.StringIO()
        results = [baseline, on_a_gpu("optimized", 1e6, None)]
        render.show(rows(results), results, {}, Console(file=out, width=100))
        texts.append(out.getvalue())
    assert "20 ms†" in texts[0]
    assert "1 ms†" not in texts[0]
    assert "† includes gaps" in texts[0]
    assert "†" not in texts[1]


def test_times_have_three_digits_and_a_unit() -> None:
    """From nanoseconds to seconds."""
    texts = [time_text(value) for value in (512.0, 1234.0, 45_600_000.0, 2e9, None)]
    assert texts == ["512 ns", "1.23 µs", "45.6 ms", "2 s", "–"]


def test_records_have_what_other_programs_ask_for() -> None:
    """Strict JSON with the promised keys."""
    found = json.loads(export.as_json(export.records(RUN, [a_result("optimized", 200.0)], CEILINGS)))
    wanted = "op case case_id implementation backend dtype status median_ns max_rel_error bytes flops"
    assert set(wanted.split()) <= set(found[0])
    assert found[0]["gbps"] == 5.0


def test_csv_is_safe_in_a_spreadsheet() -> None:
    """A cell that begins like a formula is quoted."""
    text = export.as_csv(export.records(RUN, [a_result("optimized", 200.0)], CEILINGS))
    (found,) = csv.DictReader(io.StringIO(text))
    assert found["reason"] == "'=1+1"
    assert json.loads(found["shapes"]) == {"x": [1, 8]}
