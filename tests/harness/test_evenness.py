"""Successive calls timed one by one, at times that a test gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from time import sleep

import numpy as np
import pytest

from opgauge.harness.measure.cpu import waits_of_thread
from opgauge.harness.worker import evenness
from opgauge.harness.worker.attempt import WrongError

CALL_NS = 30_000
Times = Callable[[], Iterator[float]]


def busy_neighbour() -> Iterator[float]:
    """The host works 2.4 times slower for milliseconds, and single calls wait for a processor."""
    draw = np.random.default_rng(1)
    while True:
        speed = float(draw.choice((1.0, 1.6, 2.4)))
        for _ in range(int(draw.integers(20, 300))):
            yield speed * draw.normal(1, 0.05) + (100 if draw.random() < 0.02 else 0)


def begins_slowly() -> Iterator[float]:
    """Ten calls take ten times as long."""
    return (10.0 if number < 10 else 1.0 for number in count())


def works_in_two_ways() -> Iterator[float]:
    """Every other call takes 1.8 times as long: neither is for nothing."""
    return (1.0 + 0.8 * (number % 2) for number in count())


def one_of(calls: int, least: float) -> Times:
    """One of some calls, at random, takes `least` of the time."""

    def times() -> Iterator[float]:
        draw = np.random.default_rng(calls)
        return (least if draw.random() < 1 / calls else draw.normal(1, 0.05) for _ in count())

    return times


def in_blocks() -> Iterator[float]:
    """A third of the calls does nothing, a hundred in a row."""
    return (0.01 if number % 300 < 100 else 1.0 for number in count())


def check(
    times: Iterator[float],
    monkeypatch: pytest.MonkeyPatch,
    usual_ns: float = CALL_NS,
    switches: Callable[[], int] = lambda: 0,
    waits: int = 0,
) -> float:
    """Check calls that take these multiples of `usual_ns`, and wait so often; the time that it took in ns."""
    now, calls = 0.0, 0

    def call() -> None:
        nonlocal now, calls
        now, calls = now + usual_ns * next(times), calls + 1

    monkeypatch.setattr(evenness, "perf_counter_ns", lambda: int(now))
    monkeypatch.setattr(evenness, "switches_of_process", switches)
    monkeypatch.setattr(evenness, "waits_of_thread", lambda: waits * calls)
    evenness.check_evenness(call, usual_ns)
    return now


@pytest.mark.parametrize("times", [busy_neighbour, begins_slowly, works_in_two_ways, one_of(4, 0.6)])
def test_calls_of_the_same_work_pass(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round is enough for them."""
    assert check(times(), monkeypatch) < 4 * evenness.ROUND_NS


@pytest.mark.parametrize("times", [one_of(2, 0.01), one_of(8, 0.4), one_of(20, 0.01), in_blocks])
def test_calls_that_are_left_out_are_found(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few of them, and however they follow each other."""
    with pytest.raises(WrongError, match=r"\d+ of \d+ calls in a row take about .*: it does not repeat its work"):
        check(times(), monkeypatch)


def test_long_calls_are_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has one of them, and is judged."""
    assert check(begins_slowly(), monkeypatch, usual_ns=2 * evenness.LONG_NS) == 0


def test_windows_with_other_processes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict needs calls that nobody disturbed; without any, a round ends after a while."""
    took = check(one_of(2, 0.01)(), monkeypatch, switches=count().__next__)
    assert evenness.MOST_ROUND_NS < took < 2 * evenness.MOST_ROUND_NS


def test_threads_that_are_still_awake_are_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX computes on a thread of its own: a call that finds it awake takes half as long."""
    assert check(one_of(5, 0.4)(), monkeypatch, waits=1) < 4 * evenness.ROUND_NS


def test_waits_explain_no_call_of_much_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait takes its time, and no more."""
    with pytest.raises(WrongError, match="it does not repeat its work"):
        check(one_of(5, 0.4)(), monkeypatch, usual_ns=10 * CALL_NS, waits=1)


def test_waits_of_a_thread_are_counted() -> None:
    """A sleep is one; a loop is none, but for a few that the system adds."""
    before = waits_of_thread()
    for _ in range(20):
        sleep(1e-4)
    slept = waits_of_thread() - before
    sum(range(1000))
    assert slept >= 20 > waits_of_thread() - before - slept
