"""Fresh values of all inputs: shared by the implementations of a case, and never given to one of them twice."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker import whole_values
from opgauge.harness.worker.input_changes import SHARED, InputChanges
from opgauge.harness.worker.inputs import Inputs, make_inputs
from opgauge.harness.worker.verify import Expected, expect
from opgauge.harness.worker.whole_values import WholeValues
from opgauge.ops import find_op
from opgauge.ops._core.op import Array

CASE = Case("dot", "small", {"x": (9,), "y": (9,)}, "float32", find_op("dot").params())


def drawn(user: str, shared: dict[tuple[bool, int], WholeValues], count: int = SHARED) -> list[tuple[Array, Expected]]:
    """Fresh values of x that one trial of `user` gets, one after the other, and what is expected for them."""
    inputs = {name: value.copy() for name, value in make_inputs(CASE).values.items()}
    untouched = {name: value.copy() for name, value in inputs.items()}
    rng = np.random.default_rng()
    changes = InputChanges(CASE, None, inputs, untouched, rng, emphasized=True, shared=shared, user=user)
    found = []
    for _ in range(count):
        fresh = changes.freshen(everything=True)
        assert fresh is not None
        expected = fresh.expected()
        assert expected is not None
        found.append((inputs["x"].copy(), expected))
        changes.restore()
    return found


def test_implementations_share_values_and_their_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is computed once for each; those after the shared ones are each implementation's own."""
    computed: list[Case] = []

    def count(case: Case, inputs: Inputs) -> Expected:
        computed.append(case)
        return expect(case, inputs)

    monkeypatch.setattr(whole_values, "expect", count)
    shared: dict[tuple[bool, int], WholeValues] = {}
    first, second = (drawn(user, shared, SHARED + 1) for user in ("baseline", "optimized"))
    same = [bool(np.array_equal(one, other)) for (one, _), (other, _) in zip(first, second, strict=True)]
    assert same == [True] * SHARED + [False]
    assert len(computed) == SHARED + 2


def test_no_implementation_gets_values_twice() -> None:
    """Neither within a trial, nor in a later trial of the same buffers: it may remember what it computed for them."""
    shared: dict[tuple[bool, int], WholeValues] = {}
    # the first values of each trial emphasize one of few elements, which may be the same one
    values = [x.tobytes() for _ in range(3) for x, _ in drawn("optimized", shared)[1:]]
    assert len(set(values)) == len(values)
