"""opgauge as a library: run, results and the public names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import opgauge
from opgauge.harness.errors import NothingError
from opgauge.harness.result.result import Status


def test_what_is_run_can_be_read_back(tmp_path: Path) -> None:
    """`run` measures chosen cases and stores them; `results` filters by op, implementation and time."""
    db = str(tmp_path / "runs.db")
    found = opgauge.run(
        op="sign", tag="smoke", dtype="int8", implementations=["baseline", "optimized"], budget_s=0.001, db=db
    )
    assert found
    assert {result.status for result in found} == {Status.OK}
    table = opgauge.results(db, op="sign", library="arrow")
    assert table.num_rows == len(found)
    assert set(table.column("dtype").to_pylist()) == {"int8"}
    ours = opgauge.results(db, implementation="optimized", library="records")
    assert {row["implementation"] for row in ours} == {"optimized"}
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert opgauge.results(db, since=tomorrow, library="records") == []


def test_nothing_to_run_is_an_error() -> None:
    """No case with that tag: an error instead of an empty list."""
    with pytest.raises(NothingError, match="0 cases"):
        opgauge.run(op="sign", tag="nosuchtag")


def test_public_names_are_found_and_others_are_not() -> None:
    """Each name in `__all__` exists; a misspelt one is an AttributeError."""
    for name in opgauge.__all__:
        assert callable(getattr(opgauge, name))
    with pytest.raises(AttributeError, match="opp"):
        _ = opgauge.opp
    np.testing.assert_array_equal(opgauge.call("sign", x=np.array([-2.0, 3.0], np.float32)), [-1, 1])
