"""Trials of a project's ops whose inputs or outputs have dtypes that no op of this library has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opgauge
from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status, Trial
from opgauge.harness.worker.bench import Bench
from opgauge.ops import DTYPES, find_op
from opgauge.ops._core import registry
from opgauge.ops._core.backend import to_numpy, to_torch
from opgauge.ops._core.dtype import EXCHANGED, FLOATS_8

UNSIGNED = ("uint16", "uint32", "uint64")
QUICK = Limits(budget_s=0.01, min_samples=3, max_samples=3, warmup_s=0.0)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that a test registers are forgotten after it."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))


def status(name: str, implementation: str, dtype: str) -> Status:
    """Status of a trial on 60 elements."""
    case = Case(name, "small", {"x": (60,)}, dtype, find_op(name).params())
    return Bench(lambda _: None).run(Trial(case, implementation, "cpu", "cpu"), QUICK).status


def wrong_at_the_end(array: Any) -> Any:
    """A copy whose last element is two representable numbers larger in magnitude."""
    changed = array.copy()
    changed.view(f"u{array.itemsize}")[-1] += 2
    return changed


@pytest.mark.parametrize("dtype", FLOATS_8)
def test_floats_of_8_bits_are_outputs(dtype: str) -> None:
    """Where the reference returns them: other outputs of a float32 case are float32."""
    narrow = DTYPES[dtype].numpy
    rounded = opgauge.op(name="rounded", dtypes=("float32",), outputs=("q", "y"))(lambda x: (x.astype(narrow), 2 * x))
    rounded.implementation("right", device="cpu")(lambda x: (x.astype(narrow), 2 * x))
    rounded.implementation("wrong", device="cpu")(lambda x: (wrong_at_the_end(x.astype(narrow)), 2 * x))
    assert [status("rounded", one, "float32") for one in ("right", "wrong")] == [Status.OK, Status.WRONG]


@pytest.mark.parametrize("dtype", FLOATS_8)
def test_floats_of_8_bits_are_inputs(dtype: str) -> None:
    """Outputs are float32 then, unless the reference says otherwise."""
    widened = opgauge.op(name="widened", dtypes=(dtype,))(lambda x: 3 * x)
    widened.implementation("right", device="cpu")(lambda x: 3 * x.astype(np.float32))
    widened.implementation("wrong", device="cpu")(lambda x: 3 * wrong_at_the_end(x).astype(np.float32))
    assert [status("widened", one, dtype) for one in ("right", "wrong")] == [Status.OK, Status.WRONG]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers_are_exact(dtype: str) -> None:
    """The last element counts."""
    halved = opgauge.op(name="halved", dtypes=(dtype,))(lambda x: x >> 1)
    halved.implementation("right", device="cpu")(lambda x: x >> 1)
    halved.implementation("wrong", device="cpu")(lambda x: wrong_at_the_end(x >> 1))
    assert [status("halved", one, dtype) for one in ("right", "wrong")] == [Status.OK, Status.WRONG]


@pytest.mark.parametrize("dtype", [*EXCHANGED, *UNSIGNED])
def test_tensors_of_torch_share_memory(dtype: str) -> None:
    """NumPy has not all dtypes of torch, and torch not those of ml_dtypes: they are exchanged as integers."""
    pytest.importorskip("torch")
    array = np.arange(6).reshape(2, 3).astype(DTYPES[dtype].numpy)
    for one in (array, array.T):
        tensor = to_torch(one)
        assert str(tensor.dtype) == f"torch.{dtype}"
        assert np.shares_memory(to_numpy(tensor), array)
        assert to_numpy(tensor).dtype == array.dtype
        assert (to_numpy(tensor) == one).all()
