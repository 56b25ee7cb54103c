"""Regressions: found in series, judged by what came after, excused while somebody answers for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from opgauge.harness.result.result import Environment
from opgauge.harness.store.acknowledgements import Acknowledgement
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.acknowledged import acknowledge
from opgauge.web.devices import DeviceInfo
from opgauge.web.level import Level
from opgauge.web.reader import Recent
from opgauge.web.regression import (
    Improvement,
    Regression,
    RegressionState,
    by_state,
    find_improvements,
    find_regressions,
)

TODAY = date(2026, 3, 1)
CASE = CaseInfo(1, "0" * 16, "lerp", "float32", {"name": "rows"})
DEVICE = DeviceInfo("cuda0-1", "cuda:0", "H200")
GIVEN = Acknowledgement(
    CASE.case_id, "optimized", "cuda:0", "slower", "Ada", "known", TODAY, 1.3, datetime(2026, 2, 1, tzinfo=UTC)
)


def level(number: int, time: float | None, status: str = "ok") -> Level:
    """What run `number` says."""
    started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    run = RunInfo(number, f"run-{number}", started, None, "finished", f"{number:040x}", "", Environment({}, {}))
    return Level(run, status, time, time, time, 1)


def found_in(
    times: list[float | None], status: str = "wrong", given: tuple[Acknowledgement, ...] = (), name: str = "optimized"
) -> list[Regression]:
    """Regressions of a series; None is a run that failed."""
    levels = [level(place, time, "ok" if time else status) for place, time in enumerate(times)]
    key = (CASE.case_id, name, DEVICE.slug)
    recent = Recent(devices={DEVICE.slug: DEVICE}, cases={CASE.case_id: CASE}, series={key: levels})
    return by_state(recent, acknowledge(find_regressions(recent), given, TODAY))


def improvements_in(times: list[float | None]) -> list[Improvement]:
    """Improvements of a series."""
    levels = [level(place, time) for place, time in enumerate(times)]
    key = (CASE.case_id, "optimized", DEVICE.slug)
    runs = tuple(one.run for one in levels)
    return find_improvements(Recent(runs, {DEVICE.slug: DEVICE}, {}, {CASE.case_id: CASE}, {key: levels}))


def wobbling(time: float, count: int) -> list[float | None]:
    """A level with a little noise that repeats."""
    return [time * (1 + 0.002 * ((place * 7) % 5 - 2)) for place in range(count)]


def test_a_still_series_has_none() -> None:
    """Nor has one that got faster, nor a peer."""
    assert found_in(wobbling(100, 30)) == []
    assert found_in([*wobbling(100, 10), *wobbling(80, 10)]) == []
    assert found_in([*wobbling(100, 10), *wobbling(120, 10)], name="torch") == []


def test_what_is_certain_is_suspected_at_once() -> None:
    """The latest run three times slower is said after one run and after many, until change points confirm it."""
    for past in (1, 4, 12):
        (found,) = found_in([*wobbling(100, past), 300.0])
        assert (found.kind, found.state, found.before.key, found.run.key) == (
            "slower",
            RegressionState.SUSPECTED,
            past - 1,
            past,
        )
        assert found.ratio is not None
        assert found.ratio > 2.9
    (two,) = found_in([*wobbling(100, 12), 120.0, 121.0])
    assert (two.state, two.run.key) == (RegressionState.SUSPECTED, 12)
    (confirmed,) = found_in([*wobbling(100, 12), 120.0, 121.0, 120.0])
    assert (confirmed.state, confirmed.run.key) == (RegressionState.OPEN, 12)


def test_a_suspicion_ends_with_the_next_good_run() -> None:
    """One slow run among good ones is none; a suspicion of a peer is none either."""
    assert found_in([*wobbling(100, 12), 130.0, 100.0]) == []
    assert found_in([*wobbling(100, 12), 130.0], name="torch") == []


def test_a_suspicion_can_be_acknowledged() -> None:
    """It is expected then, up to the ratio that was given."""
    times = [*wobbling(100, 12), 125.0]
    assert found_in(times, given=(GIVEN,))[0].state is RegressionState.ACKNOWLEDGED
    assert found_in([*times[:-1], 150.0], given=(GIVEN,))[0].state is RegressionState.SUSPECTED


def test_improvements_are_found() -> None:
    """A change point downwards is confirmed, the latest run alone is not; a step that went back is none."""

    def improved(times: list[float | None]) -> list[tuple[int, bool]]:
        return [(one.run.key, one.is_confirmed) for one in improvements_in(times)]

    assert improved([*wobbling(100, 10), *wobbling(70, 5)]) == [(10, True)]
    assert improved([*wobbling(100, 10), 70.0]) == [(10, False)]
    assert improved([*wobbling(100, 10), *wobbling(70, 5), *wobbling(100, 5)]) == []
    assert improved(wobbling(100, 20)) == []


def test_what_was_as_fast_before_is_regained() -> None:
    """A repair, whole or in part, is told from a series that is faster than ever."""
    slower = [*wobbling(100, 10), *wobbling(130, 10)]
    for times in (wobbling(100, 10), wobbling(112, 10), [100.0]):
        assert [one.is_regained for one in improvements_in([*slower, *times])] == [True]
    for times in (wobbling(80, 10), [80.0]):
        assert [one.is_regained for one in improvements_in([*slower, *times])] == [False]


def test_a_step_is_open_until_half_of_it_is_regained() -> None:
    """The runs around the step are named; a later step back fixes it, a small one does not."""
    (step,) = found_in([*wobbling(100, 10), *wobbling(120, 10)])
    assert (step.kind, step.state, step.before.key, step.run.key) == ("slower", RegressionState.OPEN, 9, 10)
    assert step.ratio is not None
    assert abs(step.ratio - 1.2) < 0.01
    (fixed,) = found_in([*wobbling(100, 10), *wobbling(120, 10), *wobbling(101, 10)])
    assert (fixed.state, fixed.fixed_in and fixed.fixed_in.key) == (RegressionState.FIXED, 20)
    (still,) = found_in([*wobbling(100, 10), *wobbling(120, 10), *wobbling(115, 10)])
    assert still.state is RegressionState.OPEN


def test_what_is_left_of_a_step_stays_open() -> None:
    """A step that is regained in part is open with what is left; the run that regains all of it fixes it."""
    parts = [*wobbling(100, 10), *wobbling(200, 10), *wobbling(148, 10)]
    (left,) = found_in(parts)
    assert (left.state, left.before.key, left.run.key, left.fixed_in) == (RegressionState.OPEN, 9, 10, None)
    assert abs((left.ratio or 0) - 1.48) < 0.01
    assert abs((left.after_ns or 0) - 148) < 1
    assert left.detail == "2× until a part was regained"
    (fixed,) = found_in([*parts, *wobbling(101, 10)])
    assert (fixed.state, fixed.fixed_in and fixed.fixed_in.key) == (RegressionState.FIXED, 30)
    first, second = sorted(found_in([*parts, *wobbling(170, 10)]), key=lambda one: one.run.key)
    assert abs((first.ratio or 0) - 1.48) < 0.01
    assert (second.state, second.run.key) == (RegressionState.OPEN, 30)


def test_a_break_is_open_until_it_is_ok_again() -> None:
    """One that was never ok is none; unsupported is none."""
    (broken,) = found_in([100.0, 100.0, None, None])
    assert (broken.kind, broken.detail, broken.state, broken.run.key) == ("broken", "wrong", RegressionState.OPEN, 2)
    (fixed,) = found_in([100.0, None, 100.0])
    assert fixed.state is RegressionState.FIXED
    assert found_in([None, None, 100.0]) == []
    assert found_in([100.0, None], status="unsupported") == []


def test_an_acknowledgement_counts_for_its_time_and_its_level() -> None:
    """Not after its day, not for another verdict, not for more than it expects, not for a later repair."""
    times = [*wobbling(100, 10), *wobbling(120, 10)]
    (found,) = found_in(times, given=(GIVEN,))
    assert (found.state, found.acknowledgement) == (RegressionState.ACKNOWLEDGED, GIVEN)
    for other in (
        replace(GIVEN, until=TODAY - timedelta(days=1)),
        replace(GIVEN, verdict="broken"),
        replace(GIVEN, expected_ratio=1.1),
        replace(GIVEN, implementation="baseline"),
        replace(GIVEN, device="cuda:1"),
    ):
        assert found_in(times, given=(other,))[0].state is RegressionState.OPEN
    assert found_in([*times, *wobbling(100, 10)], given=(GIVEN,))[0].state is RegressionState.FIXED
