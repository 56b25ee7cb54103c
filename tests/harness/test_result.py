"""Records go to JSON and back without loss."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from opgauge.ops import find_op

CASE = Case("p_norm", "n", {"x": (3, 4)}, "float32", find_op("p_norm").params(porder=-inf, axis=(0, 1)), tags=("seed",))
TRIAL = Trial(CASE, "baseline", "cuda", "cuda:1")
CHECK = Check(ok=False, max_abs_error=inf, max_rel_error=nan, worst=1.5, reason="y[0] is 1")
MEASUREMENT = Measurement((1.0, 2.5), "t/1", 3, 7, (1.0,), 0.5, (1980.0, inf), 1, 4096, 2)
RECORDS = [
    TRIAL,
    CHECK,
    MEASUREMENT,
    Measurement((), "t", 0),
    Result(TRIAL, Status.OK),
    Result(TRIAL, Status.WRONG, "why", CHECK, MEASUREMENT, 10, 20, True, False, 3, {"phases_s": {"call": 0.25}}),
    Ceilings("cpu", 1.5, None, {"float32": 2.0}, 3.0),
    Environment({"cpu.model": "x"}, {"commit": "abc"}),
    Limits(),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_there_and_back(record: Any) -> None:
    """Strict JSON holds a record, infinities and NaN included, and gives it back."""
    text = json.dumps(to_json(record), allow_nan=False)
    back = from_json(type(record), json.loads(text))
    assert repr(back) == repr(record)
    assert json.dumps(to_json(back), allow_nan=False) == text


def test_a_case_keeps_its_identity() -> None:
    """A trial that has been to JSON and back is of the same case."""
    assert from_json(Trial, to_json(TRIAL)).case.id == CASE.id


def test_what_is_no_status_raises() -> None:
    """A status that nobody knows is an error, not a string that lives on."""
    data = to_json(Result(TRIAL, Status.OK)) | {"status": "fine"}
    with pytest.raises(ValueError, match="fine"):
        from_json(Result, data)
