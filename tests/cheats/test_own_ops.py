"""Ops of a project: cheats by the order of inputs and by samples of them, and honest kernels of such ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opgauge
from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status, Trial
from opgauge.harness.worker.bench import Bench
from opgauge.ops import Input, find_op
from opgauge.ops._core import registry

LIMITS = Limits(budget_s=0.02, min_samples=3, max_samples=20, warmup_s=0.0)
SAMPLED = 1 << 20
"""Elements whose mean may differ from that of a sample by less than the bound."""
COUNTED, BINS = 20_000, 16
SEQUENCE = 300_000
"""Elements whose sum in sequence is wrong if all are equal."""
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops and kernels that end with the test."""
    for name in ("_OPS", "_KERNELS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


def status(op: Any, function: Callable[..., Any], size: int, *more: str) -> Status:
    """Status of a trial of the op's kernel `function`. more: inputs besides x."""
    op.implementation("tried", device="cpu")(function)
    case = Case("tried_op", "own", dict.fromkeys(("x", *more), (size,)), "float32", find_op("tried_op").params())
    return Bench(lambda _: None).run(Trial(case, "tried", "cpu", "cpu"), LIMITS).status


def histogram() -> Any:
    """Op that counts integers, in whichever order they are."""

    def reference(x: "int64") -> "int64":  # type: ignore[name-defined]  # noqa: F821, UP037
        return np.bincount(x, minlength=BINS)

    return opgauge.op(name="tried_op", inputs={"x": Input("x", kind="integers", low=0, high=BINS - 1)})(reference)


def once(function: Function) -> Function:
    """A function that computes its result in the first call alone."""
    known: list[Any] = []

    def found(x: Any) -> Any:
        if not known:
            known.append(function(x))
        return known[0].copy()

    return found


@pytest.mark.parametrize("wrapped", [once, lambda function: function], ids=["once", "honest"])
def test_counts_of_integers_change(wrapped: Callable[[Function], Function]) -> None:
    """In another order alone, they would be the same."""
    found = status(histogram(), wrapped(lambda x: np.bincount(x, minlength=BINS)), COUNTED)
    assert found is (Status.WRONG if wrapped is once else Status.OK)


def log_of_sum(x: Any) -> Any:
    """Logarithm of the sum of exponentials."""
    return np.log(np.exp(x).sum())


def mean_of_bounded(x: Any) -> Any:
    """Mean of a bounded function, for which no element decides."""
    return (1 / (1 + np.exp(-x))).mean()


@pytest.mark.parametrize("distance", [1, 2, 3])
@pytest.mark.parametrize("function", [log_of_sum, mean_of_bounded])
def test_a_sample_is_not_the_whole(function: Function, distance: int) -> None:
    """Where no few elements decide, elements at regular distances differ from the others."""
    op = opgauge.op(name="tried_op")(function)

    def sampled(x: Any) -> Any:
        found = function(x[::distance])
        return np.float32(found + np.log(distance) if function is log_of_sum else found)

    assert status(op, sampled, SAMPLED) is (Status.OK if distance == 1 else Status.WRONG)


def test_rounding_of_equal_terms_is_no_fault() -> None:
    """Where outputs of zeros are not zero, no few elements decide; all others would be equal, and errors add up."""

    def in_sequence(x: Any) -> Any:
        largest = x.max()
        return np.log(np.cumsum(np.exp(x - largest))[-1]) + largest

    assert status(opgauge.op(name="tried_op")(log_of_sum), in_sequence, SEQUENCE) is Status.OK


def test_slices_of_an_input_that_is_derived_from_all_slices() -> None:
    """An order of all elements cannot be derived for some of them."""

    def reference(x: Any, order: "int64") -> Any:  # type: ignore[name-defined]  # noqa: F821, UP037
        return x[order]

    op = opgauge.op(name="tried_op", inputs={"order": Input("order", kind="integers")})(reference)
    op.derive(lambda x, order: {"order": np.argsort(x)})
    assert status(op, lambda x, order: x[order], COUNTED, "order") is Status.OK
