"""Calls in succession: outputs are compared with accepted ones."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.succession import MOST_BEFORE, Succession
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel, find_op


@pytest.mark.parametrize("wrong", [1, 7])
def test_a_single_wrong_call_is_noticed_even_if_it_is_the_first(wrong: int) -> None:
    """Outputs of the first repeated call are no standard for the others."""
    case = Case("p_norm", "rows", {"x": (5, 7)}, "float32", find_op("p_norm").params())
    inputs = make_inputs(case)
    attempt = Attempt(case, find_kernel("p_norm", "baseline", "cpu", "float32"), inputs.values, timer_for("cpu"))
    bound, calls = attempt.bind(), count(1)
    attempt.check(attempt.call(bound, 0), expect(case, inputs), "in the first call")

    def call() -> None:
        bound()
        if next(calls) == wrong:
            attempt.buffers.out["y"][3] += 1

    with pytest.raises(WrongError, match="right after another"):
        Succession(attempt, call, np.random.default_rng(0)).check_repeats()


def test_integers_are_exchanged_in_turn_so_that_all_stay_valid() -> None:
    """An input may be a permutation, or consist of indices; the changes of a sequence follow each other."""
    case = Case("sign", "few", {"x": (2, 3)}, "int32", find_op("sign").params())
    values = {"x": np.arange(6, dtype=np.int32).reshape(2, 3)}
    attempt = Attempt(case, find_kernel("sign", "baseline", "cpu", "int32"), values, timer_for("cpu"))
    changes = (succession := Succession(attempt, attempt.bind(), np.random.default_rng(0)))._draw(50)
    seen = set()
    for change in changes:
        change.apply(succession._words)
        found = attempt.buffers.inputs["x"].reshape(-1).tolist()
        assert sorted(found) == [*range(6)]
        seen.add(tuple(found))
    assert len(seen) > 10


def test_restored_results_of_integers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bit of an integer may flip, but two can be exchanged. The kernel works once after its outputs were read."""
    case = Case("sign", "few", {"x": (8, 9)}, "int32", find_op("sign").params())
    inputs = make_inputs(case)
    attempt = Attempt(case, find_kernel("sign", "baseline", "cpu", "int32"), inputs.values, timer_for("cpu"))
    bound, kept = attempt.bind(), list[Any]()
    attempt.check(attempt.call(bound, 0), expect(case, inputs), "in the first call")

    def outputs(returned: Any) -> dict[str, Any]:
        kept.clear()
        return Attempt.outputs(attempt, returned)

    def call() -> None:
        if not kept:
            bound()
            kept.append(attempt.buffers.out["out"].copy())
        attempt.buffers.out["out"][...] = kept[0]

    monkeypatch.setattr(attempt, "outputs", outputs)
    with pytest.raises(WrongError, match="right after another"):
        Succession(attempt, call, np.random.default_rng(0)).check_outputs(MOST_BEFORE)
