"""Audit of a kernel whose bits differ from call to call: by its known outputs, and by a reference where in doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import timer_for
from opgauge.harness.worker import audit as audit_module
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.variation import Exchange, find_variation
from opgauge.harness.worker.verify import expect
from opgauge.ops import Kernel, find_kernel

CASES = Path(__file__).parent.parent.parent / "cases"
SAMPLES = 4


def undivided() -> Case:
    """A case without independent slices."""
    cases = [one for one in load_cases([CASES / "deformable_conv.yaml"]) if one.op == "deformable_conv_grad"]
    small = (one for one in cases if "smoke" in one.tags and one.dtype == "float32")
    return next(one for one in small if not isinstance(find_variation(one), Exchange))


def inexact(kernel: Kernel, error: float) -> Kernel:
    """The kernel, whose outputs get relative errors of this size, other ones in each call."""
    rng = np.random.default_rng(3)

    def function(out: dict[str, Any], **more: Any) -> Callable[[], None]:
        call = kernel.function(out=out, **more)

        def run() -> None:
            call() if kernel.prepare else kernel.function(out=out, **more)
            for array in out.values():
                array[...] *= (1 + error * rng.uniform(-1, 1, array.shape)).astype(array.dtype)

        return run

    return replace(kernel, function=function, prepare=True, deterministic=False)


def audited(error: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many references the samples of such a kernel need where outputs count as large."""
    case = undivided()
    inputs = make_inputs(case)
    expected = expect(case, inputs)
    monkeypatch.setattr(audit_module, "LOOSE_BYTES", 0)
    computed = Mock(wraps=expect)
    monkeypatch.setattr(audit_module, "expect", computed)
    timer = timer_for("cpu", 0)
    with timer.session("numpy"):
        kernel = find_kernel(case.op, "baseline", "cpu", case.dtype)
        attempt = Attempt(case, kernel, inputs.values, timer)
        call = attempt.bind()
        attempt.check(attempt.call(call, 0), expected, "in the first call")
        attempt.kernel = inexact(kernel, error)
        call, found = attempt.bind(), Audit(attempt, lambda: expected, seed=1)
        for _ in range(SAMPLES):
            found.change(whole=True, fresh=False)
            found.after(call())
    return computed.call_count


def test_large_outputs_that_agree_but_for_rounding_need_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference of a convolution takes seconds, and comparing with known outputs milliseconds."""
    assert audited(1e-7, monkeypatch) == 0


def test_large_outputs_that_differ_by_more_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth is no rounding."""
    with pytest.raises(WrongError, match="in a timed sample"):
        audited(0.1, monkeypatch)
