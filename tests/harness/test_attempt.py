"""What a kernel leaves on a device, compared where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.case.file import load_cases
from harness.measure import timer_for
from harness.worker.attempt import Attempt, WrongError
from harness.worker.inputs import make_inputs
from harness.worker.verify import expect
from ops import find_kernel

CASES = Path(__file__).parent.parent.parent / "cases"


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("what", ["input", "output"])
def test_what_changes_later_is_found(backend: str, what: str) -> None:
    """After outputs were accepted, one changed bit of an input or of an output is as wrong as before."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    inputs = make_inputs(case)
    expected = expect(case, inputs)
    timer = timer_for(backend, 0)
    with timer.session("numpy"):
        attempt = Attempt(case, find_kernel("scale", "optimized", backend, case.dtype), inputs.values, timer)
        call = attempt.bind()
        accepted = attempt.check(attempt.call(call, 0), expected, "in the first call")
        assert attempt.check(attempt.call(call, 1), expected, "in the second call") is accepted
        returned = attempt.call(call, 1)
        changed = attempt.inputs["x"] if what == "input" else attempt.buffers.out["out"]
        changed.view("u4")[1] ^= 1 << 22
        with pytest.raises(WrongError, match="changed its input x" if what == "input" else "later"):
            attempt.check(returned, expected, "later")
