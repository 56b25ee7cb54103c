"""Inputs of which a few elements matter: honest sums pass on them, dropped elements and coarse inputs do not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker.emphasis import SLICES, allow_lost, emphasize
from opgauge.harness.worker.inputs import Inputs, make_inputs
from opgauge.harness.worker.verify import check, expect
from opgauge.ops import find_op
from opgauge.ops._core.op import Array

LENGTHS = (1000, 6272, 40_000)
"""Lengths of sums. Near 6272 a variance in sequence loses most: all but the squares of a few dozen elements."""
CHANNELS, SMALL = 4096, 2.0**-14
"""Channels of a convolution, and the factor that large elements have in one of its outputs, as happens at random."""
COLUMNS = 12
"""Columns of a case: four of each kind of emphasis. A single column has all of them."""


def emphasized(op: str, length: int, seed: int, *, columns: int = COLUMNS, **params: Any) -> tuple[Case, Inputs]:
    """A case that sums down columns of float32, and inputs of which every column has few large elements."""
    case = Case(op, "columns", {"x": (length, columns)}, "float32", find_op(op).params(**params))
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


@pytest.mark.parametrize("columns", [1, COLUMNS])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_variance_in_sequence_passes(length: int, seed: int, columns: int) -> None:
    """Its sums may begin with the large elements, and lose small ones."""
    case, inputs = emphasized("normalization", length, seed, columns=columns, axis=1, epsilon=1e-5)
    outputs = normalized(inputs)
    found = check({name: outputs[name] for name in case.resolved.outputs}, expect(case, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("columns", [1, COLUMNS])
@pytest.mark.parametrize("porder", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_an_honest_norm_in_sequence_passes(length: int, porder: float, columns: int) -> None:
    """Whatever the order is."""
    case, inputs = emphasized("p_norm", length, 0, columns=columns, axis=0, porder=porder)
    found = check(norm(inputs.values["x"], porder), expect(case, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("columns", [1, COLUMNS])
@pytest.mark.parametrize("kept", [slice(16, None), slice(None, -16), slice(32, None), slice(None, -32)])
@pytest.mark.parametrize("length", LENGTHS)
def test_dropped_ends_are_seen(length: int, kept: slice, columns: int) -> None:
    """Half of the large elements at an end, or all of them, in a mean as in a norm."""
    case, inputs = emphasized("p_norm", length, 1, columns=columns, axis=0, porder=2.0)
    assert not check(norm(inputs.values["x"][kept], 2.0), expect(case, inputs)).ok
    case, inputs = emphasized("mean", length, 1, columns=columns, axis=0)
    mean = inputs.values["x"][kept].sum(axis=0, dtype=np.float64) / length
    assert not check({"out": mean.astype(np.float32)}, expect(case, inputs)).ok


def tf32(x: Array) -> Array:
    """Truncated to ten bits."""
    return np.asarray((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


@pytest.mark.parametrize("columns", [1, SLICES])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("coarse", [ml_dtypes.bfloat16, np.float16, tf32])
@pytest.mark.parametrize("seed", range(5))
def test_coarse_inputs_are_seen(seed: int, length: int, columns: int, coarse: Any) -> None:
    """Rounded to fewer bits, whatever their signs are: errors of a mean do not cancel."""
    for op, params in (("p_norm", {"porder": 2.0, "axis": 0}), ("mean", {"axis": 0})):
        case, inputs = emphasized(op, length, seed, columns=columns, **params)
        x = coarse(inputs.values["x"]) if coarse is tf32 else inputs.values["x"].astype(coarse).astype(np.float32)
        got = norm(x, 2.0) if op == "p_norm" else {"out": x.mean(axis=0, dtype=np.float64).astype(np.float32)}
        assert not check(got, expect(case, inputs)).ok


def weighted(seed: int) -> tuple[Case, Inputs]:
    """A 1x1 convolution of positive numbers, of whose outputs the first has small factors for the large elements."""
    shapes = {"x": (3, CHANNELS, 4, 8), "filter": (2, CHANNELS, 1, 1), "offset": (3, 2, 4, 8)}
    case = Case("deformable_conv", "weighted", shapes, "float32", find_op("deformable_conv").params())
    made = {name: np.abs(array) for name, array in make_inputs(case).values.items()}
    made["offset"][...] = 0
    x = emphasize(case, made, {"x": 0}, np.random.default_rng(seed))["x"]
    weight = made["filter"].copy()
    weight[0, np.abs(x).max(axis=(0, 2, 3)) > SMALL] *= np.float32(SMALL)
    return case, Inputs({**made, "x": x, "filter": weight})


def convolved(inputs: Inputs) -> dict[str, Array]:
    """A 1x1 convolution in float32, with sums in sequence over the channels."""
    products = inputs.values["x"][:, None] * inputs.values["filter"][None, :, :, :1]
    sums: Array = np.cumsum(products, axis=2, dtype=np.float32)
    return {"out": sums[:, :, -1]}


@pytest.mark.parametrize("seed", range(3))
def test_a_sum_may_lose_small_elements_where_the_large_ones_have_small_factors(seed: int) -> None:
    """The bound of such an output is small, and its slice has others, which tell coarse inputs and dropped ones."""
    case, inputs = weighted(seed)
    expected = expect(case, inputs)
    lenient = allow_lost(expected, case.dtype, {"out": 0})
    assert not check(convolved(inputs), expected).ok
    assert check(convolved(inputs), lenient).ok
    x = inputs.values["x"]
    for changed in (x.astype(ml_dtypes.bfloat16).astype(np.float32), np.where(np.arange(8) < 7, x, 0)):
        found = convolved(Inputs({**inputs.values, "x": changed}))
        assert not check(found, lenient).ok
