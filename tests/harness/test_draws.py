"""Draws of fresh values: shared by the implementations of a case, and never given to one of them twice."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker import input_changes
from opgauge.harness.worker.draws import SHARED, Draws
from opgauge.harness.worker.input_changes import FreshValues, InputChanges
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.variation import find_variation
from opgauge.harness.worker.verify import Expected
from opgauge.ops import find_op
from opgauge.ops._core.op import Array

UNDIVIDED = Case("dot", "small", {"x": (9,), "y": (9,)}, "float32", find_op("dot").params())
ROWS = Case("dot", "rows", {"x": (40, 9), "y": (40, 9)}, "float32", find_op("dot").params())


def drawn(
    case: Case, user: str, draws: Draws, count: int, *, everything: bool = True
) -> list[tuple[Array, FreshValues, Expected]]:
    """Fresh values of x that one trial of `user` gets, one after the other, and what is expected for them."""
    inputs = {name: value.copy() for name, value in make_inputs(case).values.items()}
    untouched = {name: value.copy() for name, value in inputs.items()}
    rng = np.random.default_rng()
    changes = InputChanges(case, find_variation(case), inputs, untouched, rng, emphasized=True, draws=draws, user=user)
    found = []
    for _ in range(count):
        fresh = changes.freshen(everything=everything)
        assert fresh is not None
        expected = fresh.expected()
        assert expected is not None
        found.append((inputs["x"].copy(), fresh, expected))
        changes.restore()
    return found


@pytest.mark.parametrize(
    ("case", "everything", "compute", "shared"),
    [
        (UNDIVIDED, True, "expect", 1 + SHARED),  # emphasized ones, and others
        (ROWS, True, "expect_slices", SHARED),
        (ROWS, False, "expect_slices", SHARED),
    ],
)
def test_implementations_share_values_and_their_reference(
    case: Case,
    everything: bool,
    compute: str,
    shared: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference is computed once for each; those after the shared ones are each implementation's own.

    Of many slices only the judged ones are shared: a kernel could remember the outputs of another one.
    """
    computed: list[Case] = []
    original = getattr(input_changes, compute)

    def count(case: Case, *arguments: object) -> Expected:
        computed.append(case)
        found: Expected = original(case, *arguments)
        return found

    monkeypatch.setattr(input_changes, compute, count)
    draws = Draws()
    first, second = (drawn(case, user, draws, shared + 1, everything=everything) for user in ("baseline", "optimized"))
    same, all_same = [], []
    for (one, fresh, _), (other, _, _) in zip(first, second, strict=True):
        judged = slice(None) if fresh.slices is None else list(fresh.slices)
        same.append(bool(np.array_equal(one[judged], other[judged])))
        all_same.append(bool(np.array_equal(one, other)))
    assert same == [True] * shared + [False]
    assert all_same == [not (everything and case is ROWS)] * shared + [False]
    is_known = [fresh.is_known for _, fresh, _ in second]
    assert is_known == [case is UNDIVIDED] * shared + [False]
    assert not any(fresh.is_known for _, fresh, _ in first)
    assert len(computed) == shared + 2


@pytest.mark.parametrize("case", [UNDIVIDED, ROWS])
def test_no_implementation_gets_values_twice(case: Case) -> None:
    """Neither within a trial, nor in a later trial of the same buffers: it may remember what it computed for them."""
    draws = Draws()
    # the first values of each trial emphasize one of few elements, which may be the same one
    values = [x.tobytes() for _ in range(3) for x, *_ in drawn(case, "optimized", draws, 3)[1:]]
    assert len(set(values)) == len(values)


def test_an_expectation_is_that_of_its_values() -> None:
    """Other values with the same draw, which a device of another kind may compute, have an expectation of their own."""
    draw = Draws().take("everything", 0, "optimized", np.random.default_rng())
    (*_, one), (*_, other) = drawn(ROWS, "optimized", Draws(), 2)
    assert draw.expect({"x": np.zeros(3)}, lambda: one) is one
    assert draw.expect({"x": np.zeros(3)}, lambda: other) is one
    assert draw.expect({"x": np.ones(3)}, lambda: other) is other
