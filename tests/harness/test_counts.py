"""Instruction counts of CPU kernels: by valgrind where it is installed, and how the gate judges them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from time import monotonic

import pytest

from opgauge.harness.case.file import load_cases
from opgauge.harness.gate import counts
from opgauge.harness.gate.counts import Counted, count_instructions, count_notes, counter_name, read_total
from opgauge.harness.gate.evidence import with_counts
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import Job
from opgauge.harness.judge.compare import compare
from opgauge.harness.judge.verdict import Evidence, Reason, Side, Subject, Verdict
from opgauge.harness.project import active
from opgauge.harness.project.configuration import read_project
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Trial
from opgauge.harness.run.tree import Tree, checkout
from opgauge.ops._core import registry
from tests.harness.test_gate_project import ForeignProject
from tests.tinytree import TinyTree

KERNEL = """

from numba import njit


@njit(cache=True)
def churn(out, steps):
    state = np.uint64(1)
    for _ in range(steps):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    out[0] += np.float32(state & np.uint64(1)) * np.float32(1e-30)


define("churned", lambda out: churn(out, STEPS))
"""
CASES = "op: churned\ncases:\n  - {name: small, tags: [gate], shapes: {x: [8]}, dtype: float32}\n"
SUBJECT = Subject("op", "case", "0" * 16, "optimized", "cpu")


@pytest.mark.thorough  # the interpreter and Numba start for the better part of a minute under valgrind
@pytest.mark.skipif(shutil.which(counts.VALGRIND) is None, reason="valgrind is not installed")
def test_one_per_cent_more_work_is_slower_by_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Numba loop of 1 % more steps fails the gate whatever the times are, and the report names the limits."""
    # where the system permits hardware counters, valgrind is tested all the same
    monkeypatch.setattr(counts, "open_counter", lambda: None)
    counter_name.cache_clear()
    made = TinyTree(tmp_path / "repository")
    made.write("cases/policy.yaml", "defaults: {threshold: 50}\n")
    made.set_ops("tiny", {})
    frame = (made.path / "ops/tiny/__init__.py").read_text()
    made.write("cases/tiny.yaml", CASES)
    for steps in (200_000, 202_000):  # of 0.6 instructions; a call takes 6000 more
        made.write("ops/tiny/__init__.py", frame + KERNEL.replace("STEPS", str(steps)))
        made.commit(f"{steps} steps")
    text = made.opgauge("gate", "--base", "HEAD~1", "--counts", "--pairs", "1", "--most-pairs", "1", "--json", code=1)
    counter_name.cache_clear()
    found = json.loads(text)
    (case,) = found["cases"]
    (change,) = case["changes"]
    assert (case["verdict"], case["reason"], change["metric"]) == ("slower", "more instructions", "instructions")
    assert change["after"] / change["before"] == pytest.approx(1.01, abs=0.002)
    assert "with one thread and AVX2" in " ".join(found["notes"])


def test_kernels_of_a_project_are_counted_in_either_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that count import the project's ops from each checkout, and say why a call cannot be counted."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    project = ForeignProject(tmp_path / "kernels")
    active.use(read_project(project.path / "opgauge.toml"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    active.load()
    (small, _) = load_cases([project.path / "cases"])
    trial = to_json(Trial(small, "plain", "cpu", "cpu"))
    jobs = [Job(Subject("doubled", "small", small.id, "plain", "cpu"), trial)]
    try:
        with checkout(project.path, "HEAD") as base:
            trees = {"base": Tree(base, "0" * 40, "main"), "head": Tree(project.path, "0" * 40, "this tree")}
            (base / "kernels/__init__.py").write_text("def multiply(x, factor):\n    return x.no_such_word\n")
            with WorkerPool(trees) as pool:
                counting = counts._Counting(pool, monotonic() + 60, by_valgrind=False)
                (time,) = counting.times_ns("head", jobs)
                assert time is not None
                assert time >= 300e3
                assert not counting.reasons
                assert counting.times_ns("base", jobs) == [None]
    finally:
        active.use(None)
    (reason,) = counting.reasons
    assert reason.startswith("base: AttributeError: ")
    monkeypatch.setattr(counts, "counter_name", lambda: "cachegrind")
    assert count_notes(Counted({SUBJECT: {}}, [reason]))[1] == f"instructions of 1 case were not counted: {reason}"


def test_counts_within_their_noise_are_equal() -> None:
    """0.05 % more instructions are none; 0.5 % more are slower, and 0.5 % fewer are no regression."""
    evidence = Evidence(SUBJECT, Side(), Side(), pairs=((100.0, 100.0),) * 10)
    reasons = {}
    for head in (200_100, 201_000, 199_000):
        found = compare(with_counts(evidence, {"base": 200_000, "head": head}))
        reasons[head] = (found.verdict, found.reason)
    assert reasons[200_100] == reasons[199_000] == (Verdict.SAME, Reason.WITHIN)
    assert reasons[201_000] == (Verdict.SLOWER, Reason.INSTRUCTIONS)
    assert with_counts(evidence, {"head": 1}) is evidence


def test_no_time_left_leaves_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jobs, or without seconds, nothing is started and nothing is counted."""
    monkeypatch.setattr(counts, "counter_name", lambda: "cachegrind")
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    with WorkerPool({}) as pool:
        assert count_instructions(pool, []) == Counted({}, [])


def test_totals_are_read_from_cachegrind(tmp_path: Path) -> None:
    """The last summary of a file counts; a file that is missing or has none counts as zero."""
    file = tmp_path / "1"
    file.write_text("events: Ir\nfn=main\n1 5\nsummary: 42\n")
    assert read_total(file) == 42
    file.write_text("events: Ir\n")
    assert read_total(file) == read_total(tmp_path / "2") == 0
