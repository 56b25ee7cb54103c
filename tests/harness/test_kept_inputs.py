"""Inputs that one process of the gate leaves for the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.case.file import load_cases
from harness.measure import Limits
from harness.result.result import Status, Trial
from harness.worker import block
from harness.worker.attempt import Trusted
from harness.worker.block import Bench
from harness.worker.inputs import keep_values, make_inputs, recall_values

CASES = Path(__file__).parent.parent.parent / "cases"
QUICK = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)


@pytest.mark.parametrize("file", ["sign.yaml", "lerp.yaml", "p_norm.yaml"])
def test_what_is_recalled_is_what_was_drawn(tmp_path: Path, file: str) -> None:
    """Of every smoke case, whatever its dtypes and sizes, derived inputs too: the same bits, shapes and dtypes."""
    for case in (one for one in load_cases([CASES / file]) if "smoke" in one.tags):
        drawn = make_inputs(case).values
        assert recall_values(case, tmp_path) is None
        keep_values(case, drawn, tmp_path)
        recalled = recall_values(case, tmp_path)
        assert recalled is not None
        assert {name: (value.dtype, value.shape) for name, value in recalled.items()} == {
            name: (value.dtype, value.shape) for name, value in drawn.items()
        }
        assert all(recalled[name].tobytes() == value.tobytes() for name, value in drawn.items())


def test_half_a_file_is_none(tmp_path: Path) -> None:
    """What a process that was killed left unfinished is drawn anew."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    keep_values(case, make_inputs(case).values, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert recall_values(case, tmp_path) is None


def test_the_next_process_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that trusts outputs takes kept inputs; where they were tampered with, its outputs are found out."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    trial = Trial(case, "baseline", "cpu", "cpu")
    first = Bench(lambda _: None).run(trial, QUICK, with_digest=True, kept=tmp_path)
    assert first.check is not None
    known = Trusted(first.extra["digest"], first.check)
    with monkeypatch.context() as patched:
        patched.setattr(block, "make_inputs", _refuse)
        assert Bench(lambda _: None).run(trial, QUICK, trusted=known, kept=tmp_path).status is Status.OK
    changed = {name: value + np.float32(1) for name, value in make_inputs(case).values.items()}
    keep_values(case, changed, tmp_path)
    assert Bench(lambda _: None).run(trial, QUICK, trusted=known, kept=tmp_path).status is Status.WRONG
    assert Bench(lambda _: None).run(trial, QUICK, kept=tmp_path).status is Status.OK


def _refuse(*_: Any) -> None:
    raise ArithmeticError
