"""Inputs and references that one process leaves for the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status, Trial
from opgauge.harness.worker import bench as bench_module
from opgauge.harness.worker import trial_kernel
from opgauge.harness.worker.attempt import Trusted
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.bits import same_bits
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.kept import forget_values, keep_expected, keep_values, recall_expected, recall_values
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel

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


def test_other_code_of_an_op_recalls_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trees share a folder: where the code that makes inputs or the reference differs, each has its own."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    keep_values(case, make_inputs(case).values, tmp_path)
    keep_expected(case, expect(case, make_inputs(case)), tmp_path)
    monkeypatch.setattr("opgauge.harness.worker.kept.judged_by", lambda _: "0" * 64)
    assert recall_values(case, tmp_path) is None
    assert recall_expected(case, tmp_path) is None


@pytest.mark.usefixtures("busy_process")
def test_the_next_process_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that trusts outputs takes kept inputs; where they were tampered with, its outputs are found out."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    trial = Trial(case, "baseline", "cpu", "cpu")
    first = Bench(lambda _: None).run(trial, QUICK, with_digest=True, kept=tmp_path)
    assert first.check is not None
    known = Trusted(first.extra["digest"], first.check)
    with monkeypatch.context() as patched:
        patched.setattr(bench_module, "make_inputs", _refuse)
        assert Bench(lambda _: None).run(trial, QUICK, trusted=known, kept=tmp_path).status is Status.OK
    changed = {name: value + np.float32(1) for name, value in make_inputs(case).values.items()}
    keep_values(case, changed, tmp_path)
    assert Bench(lambda _: None).run(trial, QUICK, trusted=known, kept=tmp_path).status is Status.WRONG
    assert Bench(lambda _: None).run(trial, QUICK, kept=tmp_path).status is Status.OK


def _refuse(*_: Any) -> None:
    raise ArithmeticError


@pytest.mark.parametrize("file", ["p_norm.yaml", "flatten.yaml", "dot.yaml"])
def test_a_recalled_reference_is_what_was_computed(tmp_path: Path, file: str) -> None:
    """Values and bounds, arrays and numbers, of every dtype: to the bit."""
    for case in (one for one in load_cases([CASES / file]) if "smoke" in one.tags):
        expected = expect(case, make_inputs(case))
        assert recall_expected(case, tmp_path) is None
        keep_expected(case, expected, tmp_path)
        recalled = recall_expected(case, tmp_path)
        assert recalled is not None
        for name, value in expected.values.items():
            assert same_bits(recalled.values[name], value)
            assert np.array_equal(
                np.asarray(recalled.bounds.get(name, 0.0)), np.asarray(expected.bounds.get(name, 0.0))
            )


@pytest.mark.usefixtures("busy_process")
def test_a_kernel_that_leaves_other_bits_each_time_needs_one_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process keeps it, those after it compute none; wrong outputs are wrong by it all the same."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    trial = Trial(case, "baseline", "cpu", "cpu")
    own = replace(find_kernel("scale", "baseline", "cpu", case.dtype), deterministic=False)
    monkeypatch.setattr(trial_kernel, "find_kernel", lambda *_: own)
    assert Bench(lambda _: None).run(trial, QUICK, kept=tmp_path).status is Status.OK
    monkeypatch.setattr(bench_module, "expect", _refuse)
    assert Bench(lambda _: None).run(trial, QUICK, kept=tmp_path).status is Status.OK
    own = replace(own, function=lambda **given: given["out"]["out"].fill(0), prepare=False)
    assert Bench(lambda _: None).run(trial, QUICK, kept=tmp_path).status is Status.WRONG


@pytest.mark.usefixtures("busy_process")
def test_a_kernel_that_leaves_the_same_bits_keeps_no_reference(tmp_path: Path) -> None:
    """Its outputs are known by their digest: disks are not filled for nothing."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    Bench(lambda _: None).run(Trial(case, "baseline", "cpu", "cpu"), QUICK, kept=tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".bin"}
    forget_values(tmp_path.parent)
    assert list(tmp_path.iterdir()) == []
