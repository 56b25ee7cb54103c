"""Calls in succession: outputs are compared with accepted ones."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.succession import Succession
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
