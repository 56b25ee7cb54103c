"""Checks of calls on a GPU, with a timer of a device that is not there: the calls run here, at times of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import timer_for
from opgauge.harness.measure.cuda import CudaTimer
from opgauge.harness.measure.queue import Sample
from opgauge.harness.result.result import Measurement
from opgauge.harness.worker import device_calls
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.device_calls import check_device_calls
from opgauge.harness.worker.input_changes import InputChange
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel, find_op

WORK_NS = 20_000.0
"""Time of a call that works."""


class HostedDevice(CudaTimer):
    """Streams of a device that is not there: what a call gives it is done when the device rests."""

    def __init__(self) -> None:
        self.now_ns, self.is_capturing, self.is_first = 0.0, False, False
        self.waiting: list[Callable[[], None]] = []
        self.early: list[Callable[[], None]] = []

    def rest(self) -> None:
        """Do what waits."""
        while self.waiting:
            self.waiting.pop()()

    def cold_queue(self) -> Any:
        """A queue that calls, and reads the device's time; what another stream does early, it does meanwhile."""

        def sample(call: Callable[[], Any], _: int, before: Any = int, after: Any = id, wait_ns: int = 0) -> Sample:
            for work in self.early if wait_ns else ():
                work()
            before()
            begun, returned = self.now_ns, call()
            elapsed_ns = self.now_ns - begun
            after(returned)
            return Sample(elapsed_ns, blocked=True, returned=returned)

        return Mock(sample=sample)

    def captured(self, work: Callable[[], object]) -> Callable[[], float]:
        """Do the work, as the replay of a graph would."""

        def replay() -> float:
            begun, self.is_capturing, self.is_first = self.now_ns, True, True
            work()
            self.is_capturing = False
            return self.now_ns - begun

        return replay


class RowMeans:
    """A mean of rows on the device, in several ways."""

    def __init__(self, attempt: Attempt, device: HostedDevice) -> None:
        self.x, self.y = attempt.buffers.inputs["x"], attempt.buffers.out["out"]
        self.device = device
        self.known: dict[bytes, Any] = {}
        self.left = (b"", b"")
        self.is_cold = False
        self.ready = self.y.copy()

    def honest(self) -> None:
        """Work."""
        self.y[...] = self.x.mean(axis=1, dtype=np.float64)
        self.device.now_ns += WORK_NS

    def cold(self) -> None:
        """Work, for longer if other kernels have taken this one's code out of the caches."""
        self.honest()
        self.device.now_ns += WORK_NS if self.is_cold else 0
        self.is_cold = False

    def early(self) -> None:
        """Leave what another stream has computed."""
        self.device.early = [lambda: self.ready.__setitem__(..., self.x.mean(axis=1, dtype=np.float64))]
        self.y[...] = self.ready

    def early_or_in_order(self) -> None:
        """Leave what another stream has computed, unless an input has changed since."""
        self.device.early = [self.prepare]
        if self.x.tobytes() == self.left[0]:
            self.y[...] = self.ready
            self.device.now_ns += 1_000
        else:
            self.honest()

    def prepare(self) -> None:
        """Compute in advance."""
        self.ready[...] = self.x.mean(axis=1, dtype=np.float64)
        self.left = self.x.tobytes(), b""

    def late(self) -> None:
        """Let another stream work."""
        self.device.waiting.append(self.honest)

    def remembering(self) -> None:
        """Look rows up by their content."""
        for row in range(len(self.x)):
            key = self.x[row].tobytes()
            if key not in self.known:
                self.known[key] = self.x[row].mean(dtype=np.float64)
                self.device.now_ns += WORK_NS / len(self.x)
            self.y[row] = self.known[key]

    def repeating(self) -> None:
        """Skip if nothing has changed."""
        if (self.x.tobytes(), self.y.tobytes()) == self.left:
            self.device.now_ns += 1_000
            return
        self.honest()
        self.left = self.x.tobytes(), self.y.tobytes()

    def skipping_in_graphs(self) -> None:
        """Work once in each replay of a graph, as a kernel would that reads the clock."""
        if not self.device.is_capturing or self.device.is_first:
            self.honest()
        self.device.is_first = False

    def lazy_in_graphs(self) -> None:
        """Do nothing in a graph."""
        if not self.device.is_capturing:
            self.honest()


@contextmanager
def made(seed: int) -> Iterator[tuple[Audit, Attempt, HostedDevice]]:
    """An attempt whose baseline was accepted once, and whose timer is that of a device."""
    case = Case("mean", "rows", {"x": (600, 40)}, "float32", find_op("mean").params(axis=1))
    inputs, timer, device = make_inputs(case), timer_for("cpu", 0), HostedDevice()
    with timer.session("numpy"):
        attempt = Attempt(case, find_kernel("mean", "baseline", "cpu", "float32"), inputs.values, timer)
        attempt.check(attempt.call(attempt.bind(), 0), expect(case, inputs), "in the first call")
        attempt.timer = device
        yield Audit(attempt, lambda: expect(case, inputs), seed=seed), attempt, device


def check(way: str, seed: int = 1) -> Audit:
    """Check a kernel after its samples."""
    with made(seed) as (audit, attempt, device):
        kernel = RowMeans(attempt, device)
        call = getattr(kernel, way)
        call()
        device.rest()
        samples = 1_000.0 if way in {"remembering", "early_or_in_order"} else WORK_NS
        measured = Measurement(samples_ns=(samples,), timer="t", warmup=0, hot_ns=samples)
        check_device_calls(audit, attempt, call, measured)
        assert attempt.buffers.out_of_bounds_write() == ""
        return audit


@pytest.fixture(autouse=True)
def _arrays_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays here count as a device's, of which parts are copied when a stream has ended."""
    monkeypatch.setattr(device_calls, "root_of", lambda _: "cupy")


@pytest.mark.parametrize("seed", range(5))
def test_an_honest_kernel_passes(seed: int) -> None:
    """Its inputs are as before."""
    assert not check("honest", seed).is_hot_wrong


def test_code_that_fresh_values_take_out_of_caches_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that make fresh values run before a call on known ones, which precedes the timed one."""
    with made(1) as (audit, attempt, device):
        kernel, change = RowMeans(attempt, device), audit.change

        def changed(*, whole: bool, fresh: bool) -> None:
            change(whole=whole, fresh=fresh)
            kernel.is_cold |= fresh

        monkeypatch.setattr(audit, "change", changed)
        measured = Measurement(samples_ns=(WORK_NS,), timer="t", warmup=0, hot_ns=WORK_NS)
        check_device_calls(audit, attempt, kernel.cold, measured)
        assert audit.samples > 0


def test_a_change_that_takes_outputs_out_of_the_cache_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take longer after changes of copies of the inputs, too."""
    with made(1) as (audit, attempt, device):
        kernel, apply = RowMeans(attempt, device), audit.changes.apply
        changed: list[bool] = []

        def applied(change: InputChange, arrays: Mapping[str, Any], *, is_input: bool) -> None:
            apply(change, arrays, is_input=is_input)
            kernel.is_cold = device.is_capturing
            changed.append(arrays is attempt.buffers.inputs)

        monkeypatch.setattr(audit.changes, "apply", applied)
        measured = Measurement(samples_ns=(WORK_NS,), timer="t", warmup=0, hot_ns=WORK_NS)
        check_device_calls(audit, attempt, kernel.cold, measured)
        assert set(changed) == {True, False}


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("early", "does not wait for that stream"),
        ("early_or_in_order", "where other streams have time before"),
        ("late", "after the timed stream had ended"),
        ("remembering", "remembers results"),
        ("repeating", "does not repeat its work"),
        ("skipping_in_graphs", "repeats its result"),
    ],
)
def test_a_cheat_is_found(way: str, words: str) -> None:
    """Work on other streams, and less work on known or unchanged values."""
    with pytest.raises(WrongError, match=words):
        check(way)


def test_a_kernel_that_does_less_when_captured_has_no_hot_time() -> None:
    """Nobody is blamed: a graph may not be fit for repeating."""
    assert check("lazy_in_graphs").is_hot_wrong
