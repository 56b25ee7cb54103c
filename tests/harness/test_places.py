"""Small calls at several addresses, over which a hot time is a mean."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Hooks, Limits, Timed
from opgauge.harness.measure.cuda import PLACE_BYTES
from opgauge.harness.result.result import Measurement
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.buffers import COPIED_BYTES, COPIES, Buffers
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.places import MOST_BIND_S
from opgauge.harness.worker.verify import expect
from opgauge.ops import Bound, Kernel, find_kernel
from tests.ops.attempts import case_of

LIMITS = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)


class PlacesTimer:
    """A timer that calls once at each place."""

    def __init__(self) -> None:
        self.places = 0

    def session(self, _arrays: str) -> Any:
        """No device."""
        return nullcontext()

    def synchronize(self) -> None:
        """Everything is done at once."""

    def measure(self, call: Bound, _limits: Limits, _hooks: Hooks | None, places: Sequence[Bound]) -> Timed:
        """One sample, and one call at each place."""
        returned = call()
        self.places = len(places)
        for one in places:
            one()
        return Timed(Measurement(samples_ns=(1.0,), timer="places", warmup=0, hot_ns=1.0), returned)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers on the CPU have copies too."""

    def copied(own: Buffers) -> tuple[Buffers, ...]:
        return tuple(Buffers(own._case, own.untouched, "cpu") for _ in range(COPIES))

    found = cached_property(copied)
    found.__set_name__(Buffers, "copies")
    monkeypatch.setattr(Buffers, "copies", found)


def measured(case: Case, kernel: Kernel, rounds: int = 1) -> tuple[Attempt, PlacesTimer]:
    """An attempt after so many rounds of measuring; raises WrongError."""
    inputs, timer = make_inputs(case), PlacesTimer()
    attempt = Attempt(case, kernel, inputs.values, timer)  # type: ignore[arg-type]
    call = attempt.bind()
    attempt.check(attempt.call(call, 0), expect(case, inputs), "in the first call")
    for _ in range(rounds):
        attempt.measure(call, LIMITS)
    return attempt, timer


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("implementation", ["optimized", "torch"])
def test_each_place_has_the_outputs(implementation: str) -> None:
    """The kernel is bound to copies; tensors of torch are moved to them, and back."""
    if implementation == "torch":
        pytest.importorskip("torch")
    case = case_of("fill_any_like", {"x": (5,)}, "float32", value=3.0)
    seen: list[int] = []
    found = find_kernel("fill_any_like", "optimized", "cpu", "float32")
    if implementation == "torch":
        found = replace(found, function=fill_seeing(seen), prepare=False, arrays="torch")
    attempt, timer = measured(case, found)
    assert timer.places == COPIES + 1
    assert all((copy.out["out"] == 3).all() for copy in attempt.buffers.copies)
    if implementation == "torch":
        first = attempt.buffers.out["out"].ctypes.data
        assert seen[:3] == [first] * 3
        assert len(set(seen)) == COPIES + 1
        tensors = attempt._tensors
        assert tensors is not None
        assert tensors.out["out"].data_ptr() == first


def fill_seeing(seen: list[int]) -> Any:
    """A kernel for tensors that notes the addresses to which it writes."""

    def fill(*, value: float, out: dict[str, Any], **_: Any) -> None:
        seen.append(out["out"].data_ptr())
        out["out"].fill_(value)

    return fill


@pytest.mark.usefixtures("copies")
def test_a_kernel_that_works_at_its_first_address_only_is_wrong() -> None:
    """Its hot time would be that of calls without work."""
    case = case_of("fill_any_like", {"x": (5,)}, "float32", value=3.0)
    bound: list[Any] = []

    def prepare(*, value: float, out: dict[str, Any], **_: Any) -> Bound:
        bound.append(out["out"])
        return lambda: bound[0].fill(value)

    kernel = replace(find_kernel("fill_any_like", "optimized", "cpu", "float32"), function=prepare, prepare=True)
    with pytest.raises(WrongError, match="out has other values at another address"):
        measured(case, kernel)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("slow", [False, True])
def test_a_kernel_that_takes_long_to_bind_stays_at_its_address(*, slow: bool) -> None:
    """It may compile then; others are bound once, however often they are measured."""
    case = case_of("fill_any_like", {"x": (5,)}, "float32", value=3.0)
    binds: list[float] = []

    def prepare(*, value: float, out: dict[str, Any], **_: Any) -> Bound:
        binds.append(value)
        time.sleep(2 * MOST_BIND_S * slow)
        return lambda: out["out"].fill(value)

    kernel = replace(find_kernel("fill_any_like", "optimized", "cpu", "float32"), function=prepare, prepare=True)
    _, timer = measured(case, kernel, rounds=3)
    assert len(binds) == (2 if slow else COPIES + 1)
    assert timer.places == (0 if slow else COPIES + 1)


@pytest.mark.gpu
def test_small_buffers_have_copies_at_other_addresses() -> None:
    """At least one place of 4 KiB apart; large ones, and those on the CPU, have none."""
    small, large = (case_of("sign", {"x": (size,)}, "float32") for size in (5, COPIED_BYTES // 4))
    buffers = Buffers(small, make_inputs(small).values, "cuda")
    addresses = sorted(one.out["out"].data.ptr for one in (buffers, *buffers.copies))
    assert all(after - before > PLACE_BYTES for before, after in pairwise(addresses))
    assert Buffers(large, make_inputs(large).values, "cuda").copies == ()
    assert Buffers(small, make_inputs(small).values, "cpu").copies == ()
