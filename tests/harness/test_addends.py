"""What an addend costs in an op's own pass, from results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opgauge.harness.case.file import load_cases
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Measurement, Result, Status, Trial
from tools.addends import addends, most_of_resnet50, saved_by_resnet50

CASES = Path(__file__).parent.parent.parent / "cases"
COPY = Ceilings("cuda:0", 4000.0, 4000.0, {"float32": 50_000.0}, 2000.0)


def measured(alone_ns: float, separate_ns: float, added_ns: float) -> Iterator[Result]:
    """Every site, each in the same times."""
    for case in load_cases([CASES / f"{name}.yaml" for name in ("add_n", "normalization", "conv_data_grad")]):
        if "sites" in case.tags:
            time_ns = separate_ns if case.op == "add_n" else added_ns if "with-add" in case.name else alone_ns
            measurement = Measurement(samples_ns=(time_ns,), timer="made up", warmup=1)
            trial = Trial(case, "optimized", "cuda", "cuda:0")
            yield Result(trial, Status.OK, measurement=measurement, bytes=4_000_000, flops=50_000)


def test_an_addend_costs_what_it_adds() -> None:
    """48 sites: the difference to the op alone, over a separate addition of the same shape and layout."""
    found = addends(measured(1000.0, 800.0, 1200.0), {"cuda:0": COPY})
    assert len(found) == 48
    assert {one.share for one in found} == {0.25}
    assert all(one.is_memory_bound for one in found)


def test_what_memory_does_not_bound_is_told() -> None:
    """A copy of the bytes takes a microsecond: of four, that is not what the op waits for."""
    assert not any(one.is_memory_bound for one in addends(measured(4000.0, 800.0, 4200.0), {"cuda:0": COPY}))
    slow = replace(COPY, matrix_gflops={"float32": 1.0, "float16": 1.0})
    assert not any(one.is_memory_bound for one in addends(measured(1000.0, 800.0, 1200.0), {"cuda:0": slow}))


def test_resnet50_has_32_of_them() -> None:
    """Blocks of a stage after its first are alike; a site that was not measured leaves no sum."""
    found = addends(measured(1000.0, 800.0, 1200.0), {"cuda:0": COPY})
    assert saved_by_resnet50(found, "float32", "first") == pytest.approx(32 * 600.0)
    assert saved_by_resnet50(found[1:], found[0].dtype, found[0].layout) is None
    # 706 MB forward and 719 MB backward, read and written once more by separate additions
    assert most_of_resnet50("float32", 32, COPY) == pytest.approx(2 * 1.4258e9 / 4000.0, rel=1e-3)
