"""opgauge as a library: run, results and the public names."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import opgauge
from opgauge.harness.errors import FilterError, NothingError, StoreError
from opgauge.harness.result.result import Status


def test_what_is_run_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` measures chosen cases and stores them; `results` filters by op, implementation and time.

    Without a database it reads the one that `opgauge run` writes.
    """
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
    monkeypatch.setenv("OPGAUGE_DB", db)
    assert len(opgauge.results(library="records")) == len(found)


def test_nothing_to_run_is_an_error() -> None:
    """A value that no case has, or values that exclude each other: an error instead of an empty list."""
    with pytest.raises(FilterError, match="tag nosuchtag matches nothing"):
        opgauge.run(op="sign", tag="nosuchtag")
    with pytest.raises(FilterError, match="op sgin matches nothing; did you mean 'sign'"):
        opgauge.run(op="sgin")
    with pytest.raises(NothingError, match="0 cases"):
        opgauge.run(op="dot", dtype="int8")


def test_results_of_no_database_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt file is not made anew and read as empty; a library that is not installed is named with its remedy."""
    with pytest.raises(StoreError, match="there is no database"):
        opgauge.results(str(tmp_path / "misspelt.db"), library="records")
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow, or library='records'"):
        opgauge.results(str(tmp_path / "runs.db"), library="arrow")


def test_public_names_are_found_and_others_are_not() -> None:
    """Each name in `__all__` exists; a misspelt one is an AttributeError."""
    for name in opgauge.__all__:
        assert callable(getattr(opgauge, name))
    with pytest.raises(AttributeError, match="opp"):
        _ = opgauge.opp
    np.testing.assert_array_equal(opgauge.call("sign", x=np.array([-2.0, 3.0], np.float32)), [-1, 1])
