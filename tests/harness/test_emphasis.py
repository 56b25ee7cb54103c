"""Inputs of which a few elements matter: honest sums pass on them, dropped elements and coarse inputs do not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker.emphasis import emphasize
from opgauge.harness.worker.inputs import Inputs, make_inputs
from opgauge.harness.worker.verify import check, expect
from opgauge.ops import find_op
from opgauge.ops._core.op import Array

LENGTHS = (1000, 6272, 40_000)
"""Lengths of sums. Near 6272 a variance in sequence loses most: all but the squares of a few dozen elements."""
COLUMNS = 12
"""Columns of a case: four of each kind of emphasis."""


def emphasized(op: str, length: int, seed: int, **params: Any) -> tuple[Case, Inputs]:
    """A case that sums down columns of float32, and inputs of which every column has few large elements."""
    case = Case(op, "columns", {"x": (length, COLUMNS)}, "float32", find_op(op).params(**params))
    values = emphasize(case, make_inputs(case).values, {"x": 1}, np.random.default_rng(seed))
    return case, Inputs({**make_inputs(case).values, **values})


def added(rows: Array) -> Array:
    """Sums down the rows, one after the other in float32, as simple kernels add."""
    sums: Array = np.cumsum(rows, axis=0, dtype=np.float32)
    return np.asarray(sums[-1])


def normalized(inputs: Inputs) -> dict[str, Array]:
    """Outputs of normalization in float32, with sums in sequence."""
    x, length = inputs.values["x"], np.float32(len(inputs.values["x"]))
    mean = added(x) / length
    inverse = 1 / np.sqrt(added(np.square(x - mean)) / length + np.float32(1e-5))
    y = (x - mean) * inverse * inputs.values["gamma"] + inputs.values["beta"]
    return {"y": y, "mean": mean, "inv_variance": inverse}


def norm(x: Array, porder: float) -> dict[str, Array]:
    """The p-norm of columns, with sums in sequence."""
    return {"y": added(np.abs(x) ** np.float32(porder)) ** np.float32(1 / porder)}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_variance_in_sequence_passes(length: int, seed: int) -> None:
    """Its sums may begin with the large elements, and lose small ones."""
    case, inputs = emphasized("normalization", length, seed, axis=1, epsilon=1e-5)
    outputs = normalized(inputs)
    found = check({name: outputs[name] for name in case.resolved.outputs}, expect(case, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("porder", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_an_honest_norm_in_sequence_passes(length: int, porder: float) -> None:
    """Whatever the order is."""
    case, inputs = emphasized("p_norm", length, 0, axis=0, porder=porder)
    found = check(norm(inputs.values["x"], porder), expect(case, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("kept", [slice(16, None), slice(None, -16), slice(32, None), slice(None, -32)])
@pytest.mark.parametrize("length", LENGTHS)
def test_dropped_ends_are_seen(length: int, kept: slice) -> None:
    """Half of the large elements at an end, or all of them, in a mean as in a norm."""
    case, inputs = emphasized("p_norm", length, 1, axis=0, porder=2.0)
    assert "elements are wrong" in check(norm(inputs.values["x"][kept], 2.0), expect(case, inputs)).reason
    case, inputs = emphasized("mean", length, 1, axis=0)
    mean = inputs.values["x"][kept].sum(axis=0, dtype=np.float64) / length
    assert "elements are wrong" in check({"out": mean.astype(np.float32)}, expect(case, inputs)).reason


@pytest.mark.parametrize("length", LENGTHS)
def test_coarse_inputs_are_seen(length: int) -> None:
    """Rounded to bfloat16."""
    case, inputs = emphasized("p_norm", length, 2, axis=0, porder=2.0)
    coarse = inputs.values["x"].astype(ml_dtypes.bfloat16).astype(np.float32)
    assert "12 of 12 elements are wrong" in check(norm(coarse, 2.0), expect(case, inputs)).reason
