"""Tuning: a candidate that is better is found, noise changes nothing, a wrong one is out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Environment
from opgauge.harness.tune import file
from opgauge.harness.tune.file import write
from opgauge.harness.tune.rounds import LocalTuningBench
from opgauge.harness.tune.tuner import LEAST_ROUNDS, MOST_ROUNDS, Tuner, TuningFinding, cases_of
from opgauge.harness.worker import protocol
from opgauge.ops import TuningError, find_op
from opgauge.ops._core.tuning import Parameter

WIDTH = Parameter("sweep.width", 4, (2, 4, 8), "cpu", ("p_norm",), "for a test")
HEIGHT = Parameter("sweep.height", 1, (1, 2), "cpu", ("p_norm",), "for a test")
PLENTY_S = 1000.0
TODAY = date(2026, 11, 21)
HERE = Environment({"cpu.model": "Fast CPU"}, {"numpy": "2.4", "host": "secret", "cpu.governor": "x"})


def a_case(name: str, length: int = 7, tags: tuple[str, ...] = ("seed",)) -> Case:
    """A p_norm."""
    return Case("p_norm", name, {"x": (5, length)}, "float32", find_op("p_norm").params(), tags=tags)


CASES = [a_case("short", 7), a_case("long", 9)]


class Fake:
    """A worker with made-up times: `time_of(values, case)` in nanoseconds, times noise that it draws."""

    def __init__(self, time_of: Callable[[Mapping[str, int], str], float], noise: float = 0.002) -> None:
        self.time_of = time_of
        self.noise = noise
        self.rng = np.random.default_rng(7)
        self.log: list[tuple[str, int]] = []
        self.starts = 0
        self.status: dict[tuple[str, int], str] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.bound: list[str] = []

    @contextmanager
    def start(self) -> Iterator[Fake]:
        """A fresh worker, with a level of its own."""
        self.starts += 1
        self.level = 1 + 0.2 * self.rng.random()
        yield self

    def run_plain(self, trial: Mapping[str, Any], *, block: int = 0, **more: Any) -> dict[str, Any]:
        """A result with one sample."""
        name, values = trial["case"]["name"], more["tuning"]
        self.log.append((name, values["sweep.width"]))
        status = self.status.get((name, values["sweep.width"]), "ok")
        if status != "ok":
            return {"status": status, "reason": "out is 7"}
        time_ns = self.time_of(values, name) * self.level * (1 + self.noise * self.rng.standard_normal())
        measurement = {"samples_ns": [time_ns], "timer": "fake", "warmup": 0}
        check = {"ok": True, "max_abs_error": 0.0, "max_rel_error": 0.0, "worst": 0.0}
        digest = {"digest": "d"} if more["with_digest"] else {}
        return {"status": "ok", "measurement": measurement, "check": check, "extra": digest}

    def ask(self, request: protocol.ListTunables) -> dict[str, Any]:
        """What a case's kernel asks for."""
        name = request.trial["case"]["name"]
        self.bound.append(name)
        return self.answers.get(name, {"names": [HEIGHT.name, WIDTH.name]})


def tune(fake: Fake, parameter: Parameter = WIDTH, cases: list[Case] | None = None) -> TuningFinding:
    """What a tuner finds with a fake worker."""
    return Tuner(LocalTuningBench(fake.start), "cpu", budget_s=PLENTY_S).tune(
        parameter, CASES if cases is None else cases
    )


def test_a_planted_better_candidate_is_chosen() -> None:
    """A candidate that saves 10 % is found, with an interval that holds the truth; the slower one is not."""
    found = tune(Fake(lambda values, _: {2: 1100.0, 4: 1000.0, 8: 900.0}[values["sweep.width"]]))
    assert found.chosen == 8
    assert found.best is not None
    low, high = found.best.interval or (0, 0)
    assert low < 0.9 < high < 0.99
    assert [one.value for one in found.tried] == [2, 8]
    assert found.cases == ("p_norm · short", "p_norm · long")


def test_a_gain_of_less_than_a_percent_keeps_the_default() -> None:
    """Half a percent, however certain, is not worth a departure."""
    found = tune(Fake(lambda values, _: {2: 1000.0, 4: 1000.0, 8: 995.0}[values["sweep.width"]], noise=0.0))
    assert found.chosen == 4
    assert found.nearest is not None
    assert found.nearest.value == 8


@pytest.mark.parametrize("seed", range(20))
def test_noise_keeps_the_default(seed: int) -> None:
    """Candidates that do the same work are not chosen because they were lucky."""
    fake = Fake(lambda *_: 1000.0, noise=0.05)
    fake.rng = np.random.default_rng(seed)
    assert tune(fake).chosen == 4


def test_the_mean_over_the_cases_decides_and_the_worst_is_named() -> None:
    """A candidate may lose on one case if it wins more on the other; the finding says where it loses."""
    times = {("short", 8): 800.0, ("long", 8): 1050.0}
    found = tune(Fake(lambda values, name: times.get((name, values["sweep.width"]), 1000.0)))
    assert found.chosen == 8
    assert found.best is not None
    name, ratio = found.best.worst or ("", 0)
    assert name == "p_norm · long"
    assert ratio == pytest.approx(1.05, abs=0.01)


def test_a_wrong_candidate_is_out() -> None:
    """One wrong result disqualifies, however fast; the reason is kept, and it is not run again."""
    fake = Fake(lambda values, _: {2: 1000.0, 4: 1000.0, 8: 100.0}[values["sweep.width"]])
    fake.status["long", 8] = "wrong"
    found = tune(fake)
    assert found.chosen == 4
    assert [one.reason for one in found.tried if one.value == 8] == ["p_norm · long is wrong: out is 7"]
    assert fake.log.count(("long", 8)) == 1


def test_a_case_that_the_default_cannot_run_is_left_out() -> None:
    """What fails without tuning says nothing about it."""
    fake = Fake(lambda values, _: {2: 1000.0, 4: 1000.0, 8: 900.0}[values["sweep.width"]])
    fake.status["long", 4] = "out_of_memory"
    found = tune(fake)
    assert found.chosen == 8
    assert found.cases == ("p_norm · short",)
    assert found.notes == ("p_norm · long: out_of_memory: out is 7",)


def test_cases_that_do_not_ask_are_left_out() -> None:
    """A case whose kernel never looks at the parameter is not run; one that cannot be bound is named."""
    fake = Fake(lambda values, _: {2: 1000.0, 4: 1000.0, 8: 900.0}[values["sweep.width"]])
    fake.answers = {"long": {"names": ["sweep.height"]}, "odd": {"failed": "out of memory"}}
    found = tune(fake, cases=[*CASES, a_case("odd", 11)])
    assert found.cases == ("p_norm · short",)
    assert {name for name, _ in fake.log} == {"short"}
    assert found.notes == ("p_norm · odd: out of memory",)
    assert tune(fake, cases=[CASES[1]]).rounds == 0


def test_each_case_is_bound_once_for_all_parameters() -> None:
    """And without a budget of its own: all that ask are found before the first is measured."""
    fake = Fake(lambda *_: 1000.0)
    fake.answers = {"long": {"names": ["sweep.height"]}}
    tuner = Tuner(LocalTuningBench(fake.start), "cpu", budget_s=0.0)
    assert tuner.tune(WIDTH, CASES).cases == ("p_norm · short",)
    assert tuner.tune(HEIGHT, CASES[1:]).cases == ("p_norm · long",)
    assert fake.bound == ["short", "long"]


def test_rounds_are_fresh_and_alternate() -> None:
    """Each round has its own worker and goes through the candidates in the opposite order of the one before."""
    fake = Fake(lambda *_: 1000.0)
    found = tune(fake, cases=[CASES[0]])
    assert fake.starts == 1 + found.rounds == 1 + MOST_ROUNDS
    assert [value for _, value in fake.log[:6]] == [4, 2, 8, 8, 2, 4]


def test_without_time_the_first_case_gets_the_least_rounds() -> None:
    """Where there is no time for all cases the first ones count, and the others are said to be left out."""
    found = Tuner(LocalTuningBench(Fake(lambda *_: 1000.0).start), "cpu", budget_s=0.0).tune(WIDTH, CASES)
    assert found.rounds == LEAST_ROUNDS
    assert found.cases == ("p_norm · short",)
    assert (found.notes, found.late) == ((), 1)


def test_what_was_chosen_is_in_force_for_the_next() -> None:
    """Parameters are tuned one after the other, each with what was found before it."""
    fake = Fake(lambda values, _: 1000.0 - 100 * (values["sweep.width"] == 8))
    seen: list[Mapping[str, int]] = []
    tuner = Tuner(LocalTuningBench(fake.start), "cpu", budget_s=PLENTY_S)
    tuner.tune(WIDTH, CASES)
    fake.time_of = lambda values, _: seen.append(values) or 1000.0  # type: ignore[func-returns-value]
    tuner.tune(HEIGHT, CASES)
    assert {values["sweep.width"] for values in seen} == {8}
    assert {values["sweep.height"] for values in seen} == {1, 2}


def test_a_parameter_may_be_tuned_again() -> None:
    """Its earlier choice stands in no candidate's way: each is measured as itself."""
    fake = Fake(lambda *_: 1000.0)
    tuner = Tuner(LocalTuningBench(fake.start), "cpu", budget_s=0.0)
    tuner.chosen["sweep.width"] = 8
    assert tuner.tune(WIDTH, CASES).chosen == 4
    assert {value for _, value in fake.log} == {2, 4, 8}


def test_checked_bits_are_trusted() -> None:
    """The reference is computed once a candidate and case: later rounds bring the digest of what was checked."""
    asked: list[bool] = []
    fake = Fake(lambda *_: 1000.0)
    plain = fake.run_plain

    def listen(trial: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        asked.append(more["trusted"] is None)
        return plain(trial, **more)

    fake.run_plain = listen  # type: ignore[method-assign]
    tune(fake)
    assert asked.count(True) == len(CASES) * len(WIDTH.candidates)


def test_published_cases_come_first_and_small_ones_never() -> None:
    """Seed, sites, full, in this order; not smoke, not untagged, not other ops, not what memory does not hold."""
    given = [
        a_case("full", tags=("full",)),
        a_case("both", tags=("full", "smoke")),
        a_case("none", tags=()),
        a_case("seed", 11),
        a_case("sites", tags=("full", "sites")),
        a_case("huge", 1 << 20),
    ]
    assert [case.name for case in cases_of(WIDTH, given, 1e6)] == ["seed", "sites", "full"]
    other = Parameter("sweep.other", 1, (1, 2), "cpu", ("dot",), "for a test")
    assert cases_of(other, given, 1e6) == []


def written(path: Path, *findings: TuningFinding, model: str = "Fast CPU", day: date = TODAY) -> dict[str, Any]:
    """What the file says after `findings`."""
    write(path, model, "cpu", findings, HERE, "abc", day)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_file_holds_what_departs_and_how_it_was_found(tmp_path: Path) -> None:
    """Values that replace a default count; of every parameter it says what was seen, when and of which commit."""
    better = tune(Fake(lambda values, _: {2: 1100.0, 4: 1000.0, 8: 900.0}[values["sweep.width"]]))
    path = tmp_path / "new" / "fast-cpu.json"
    found = written(path, better)
    assert (found["backend"], found["device"], found["versions"]) == ("cpu", "Fast CPU", {"numpy": "2.4"})
    assert found["values"] == {"sweep.width": 8}
    entry = found["parameters"]["sweep.width"]
    assert (entry["value"], entry["default"], entry["commit"], entry["date"]) == (8, 4, "abc", "2026-11-21")
    assert entry["best"]["ratio"] == pytest.approx(0.9, abs=0.01)
    text = path.read_text()
    assert text == json.dumps(found, indent=1, sort_keys=True) + "\n"


def test_parameters_that_were_not_looked_at_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for one parameter leaves what an earlier run says of the others, and replaces what it says itself."""
    monkeypatch.setattr(file, "parameters", lambda: (WIDTH, HEIGHT))
    path = tmp_path / "fast-cpu.json"
    written(path, tune(Fake(lambda values, _: 1000.0 - 100 * (values["sweep.width"] == 8))))
    same = Fake(lambda values, _: 1000.0)
    tuner = Tuner(LocalTuningBench(same.start), "cpu", budget_s=PLENTY_S)
    tuner.chosen["sweep.width"] = 4
    found = written(path, tuner.tune(HEIGHT, CASES), day=date(2027, 1, 1))
    assert found["values"] == {"sweep.width": 8}
    assert found["parameters"]["sweep.height"]["date"] == "2027-01-01"
    assert found["parameters"]["sweep.width"]["date"] == "2026-11-21"
    assert written(path, tune(Fake(lambda *_: 1000.0)))["values"] == {}


def test_parameters_that_no_longer_exist_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run deletes the values of parameters that are not declared, and leaves the others."""
    path = tmp_path / "fast-cpu.json"
    written(path, tune(Fake(lambda values, _: 1000.0 - 100 * (values["sweep.width"] == 8))))
    monkeypatch.setattr(file, "parameters", lambda: (HEIGHT,))
    found = written(path)
    assert (found["values"], found["parameters"]) == ({}, {})


def test_the_file_of_another_device_is_not_overwritten(tmp_path: Path) -> None:
    """A slip in --output does not cost a file; nor does one that cannot be read."""
    path = tmp_path / "fast-cpu.json"
    written(path, tune(Fake(lambda *_: 1000.0)))
    with pytest.raises(TuningError, match="is of Fast CPU, not of Slow CPU"):
        written(path, model="Slow CPU")
    path.write_text("{")
    with pytest.raises(TuningError, match="no JSON"):
        written(path)
