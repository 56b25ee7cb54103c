"""Audit of a kernel whose bits differ from call to call: by its known outputs, and by a reference where in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import timer_for
from opgauge.harness.worker import audit as audit_module
from opgauge.harness.worker import variation as variation_module
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.emphasized_call import check_emphasis
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.variation import Exchange, expect_slices, find_variation
from opgauge.harness.worker.verify import expect
from opgauge.ops import Kernel, find_kernel, find_op

CASES = Path(__file__).parent.parent.parent / "cases"
SAMPLES = 4


def undivided() -> Case:
    """A case without independent slices."""
    cases = [one for one in load_cases([CASES / "deformable_conv.yaml"]) if one.op == "deformable_conv_grad"]
    small = (one for one in cases if "smoke" in one.tags and one.dtype == "float32")
    return next(one for one in small if not isinstance(find_variation(one), Exchange))


def inexact(kernel: Kernel, errors: Sequence[float]) -> Kernel:
    """A kernel without `prepare`, whose outputs get relative errors of these sizes, one after the other."""
    rng, sizes = np.random.default_rng(3), iter(errors)

    def function(out: dict[str, Any], **more: Any) -> Callable[[], None]:
        def run() -> None:
            kernel.function(out=out, **more)
            error = next(sizes)
            for array in out.values():
                array[...] *= (1 + error * rng.uniform(-1, 1, array.shape)).astype(array.dtype)

        return run

    return replace(kernel, function=function, prepare=True, deterministic=False)


@pytest.fixture(autouse=True)
def _unhurried_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of variations that no busy machine cuts short, here or in an earlier test."""
    monkeypatch.setattr(variation_module, "MOST_S", inf)
    monkeypatch.setattr(variation_module, "_FOUND", {})


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """References of whole cases that the audit computes."""
    found = Mock(wraps=expect)
    monkeypatch.setattr(audit_module, "expect", found)
    return found


@contextmanager
def accepted(case: Case) -> Iterator[Attempt]:
    """An attempt of the baseline, whose outputs were accepted once."""
    inputs, timer = make_inputs(case), timer_for("cpu", 0)
    with timer.session("numpy"):
        attempt = Attempt(case, find_kernel(case.op, "baseline", "cpu", case.dtype), inputs.values, timer)
        attempt.check(attempt.call(attempt.bind(), 0), expect(case, inputs), "in the first call")
        yield attempt


def sample(attempt: Attempt, *errors: float) -> None:
    """Samples of a kernel with such errors, the last one of all that follow."""
    found = [*errors, *errors[-1:] * (SAMPLES - len(errors))]
    attempt.kernel = inexact(find_kernel(attempt.case.op, "baseline", "cpu", attempt.case.dtype), found)
    call, audit = attempt.bind(), Audit(attempt, Mock(), seed=1)
    for _ in found:
        audit.change(whole=True, fresh=False)
        audit.after(call())


def test_large_outputs_that_agree_but_for_rounding_need_no_reference(
    computed: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference of a convolution takes seconds, and comparing with known outputs milliseconds."""
    monkeypatch.setattr(audit_module, "LOOSE_BYTES", 0)
    with accepted(undivided()) as attempt:
        sample(attempt, 1e-7)
    computed.assert_not_called()


def test_large_outputs_that_differ_by_more_are_judged(computed: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth is no rounding."""
    monkeypatch.setattr(audit_module, "LOOSE_BYTES", 0)
    with accepted(undivided()) as attempt, pytest.raises(WrongError, match="in a timed sample"):
        sample(attempt, 0.1)
    computed.assert_called_once()


def test_references_of_outputs_that_always_differ_take_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then their changed parts are compared with known outputs, within a tolerance."""
    monkeypatch.setattr(audit_module, "SHARE", 0.0)
    monkeypatch.setattr(audit_module, "SMALL_BYTES", 0)
    slices = Mock(wraps=expect_slices)
    monkeypatch.setattr(audit_module, "expect_slices", slices)
    case = Case("mean", "rows", {"x": (600, 40)}, "float32", find_op("mean").params(axis=1))
    with accepted(case) as attempt:
        sample(attempt, 1e-7)
        slices.assert_called_once()
        with pytest.raises(WrongError, match="in a timed sample"):
            sample(attempt, 1e-7, 1e-7, 0.1)


def test_slices_beside_a_derived_input_of_all_slices_have_their_own_reference(computed: Mock) -> None:
    """The norm of all of x is an input of the gradient: it stays as it is while slices of x change."""
    params = find_op("p_norm_grad").params(porder=2.0, axis=None)
    case = Case("p_norm_grad", "whole", {"x": (48, 40)}, "float32", params)
    with accepted(case) as attempt:
        call, audit = attempt.bind(), Audit(attempt, Mock(), seed=1)
        check_emphasis(audit, attempt, call)
        for _ in range(SAMPLES):
            audit.change(whole=False, fresh=True)
            audit.after(call())
    computed.assert_not_called()


@pytest.mark.parametrize("seldom", [False, True])
def test_fresh_values_are_seldom_in_many_processes(*, seldom: bool) -> None:
    """They would take most of a short pair. Of few processes, the first sample has them."""
    found = []
    with accepted(Case("mean", "rows", {"x": (600, 40)}, "float32", find_op("mean").params(axis=1))) as attempt:
        call = attempt.bind()
        for seed in range(64):
            audit = Audit(attempt, Mock(), seed=seed)
            audit.is_seldom = seldom
            audit.before()
            audit.after(call())
            found.append(audit.fresh)
    assert (0 < sum(found) < 8) if seldom else all(found)
