"""`opgauge gate` between two commits of a small repository: verdicts, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from opgauge.harness.cli.gate import bisect_code
from opgauge.harness.gate.gate import ExitCode, GateOutcome
from tests.tinytree import ROOT, TinyTree

QUICK = ("--pairs", "4", "--most-pairs", "4", "--block-s", "0.01", "--timeout", "2")
PATIENT = (*QUICK, "--most-pairs", "6")
"""For verdicts that a pair must not spoil which other processes disturbed."""
UNHURRIED = (*PATIENT, "--timeout", "30")
"""The same for calls that they may delay by seconds."""
POLICY = "defaults: {threshold: 50}  # a slowdown here is by 1000, and other processes take the cores meanwhile\n"
ONCE = (*QUICK, "--pairs", "1", "--most-pairs", "1")
LISTED = ("--device", "cpu", "--dry-run", "--json")
"""For which cases are chosen: measuring them takes ten times as long."""
FIRST = "HEAD~3"
"""Commit before what is planted."""
BEFORE = {"steady": "sane", "slowed": "sane", "spoilt": "sane", "stuck": "sane", "dropped": "sane", "mended": "crash"}
AFTER = {"steady": "sane", "slowed": "slow", "spoilt": "wrong", "stuck": "hang", "added": "sane", "mended": "sane"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> TinyTree:
    """Four commits: in the third an op is slower, one is wrong, one hangs, one is new, one is gone."""
    made = TinyTree(tmp_path_factory.mktemp("gate") / "repository")
    made.write("cases/policy.yaml", POLICY)
    made.set_ops("other", {"untouched": "sane"})
    for number, bodies in enumerate((BEFORE, BEFORE, AFTER, AFTER)):
        made.set_ops("tiny", bodies)
        made.write("ops/tiny/notes.txt", str(number))
        made.commit(f"commit {number}")
    return made


@pytest.fixture(scope="module")
def found(tree: TinyTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what one gate of every case prints and writes in GitHub Actions; it ends with 3."""
    folder = tmp_path_factory.mktemp("found")
    files = {"GITHUB_STEP_SUMMARY": folder / "summary.md", "GITHUB_OUTPUT": folder / "output"}
    actions = {"GITHUB_ACTIONS": "true", **{name: str(file) for name, file in files.items()}}
    chosen = ("--base", FIRST, "--all", *PATIENT, "--json", "--junit", str(folder / "gate.xml"))
    (folder / "printed").write_text(tree.opgauge("gate", *chosen, code=3, **actions))
    return folder


def words(text: str) -> dict[str, str]:
    """What the gate's JSON says of each op: its verdict, or its kind."""
    found: dict[str, Any] = json.loads(text)
    return {one["op"]: one["verdict"] or one["kind"] for one in found["cases"]}


def split(found: Path) -> tuple[str, str]:
    """The JSON that a gate printed, and the rest."""
    text, end, marks = (found / "printed").read_text().partition("\n}\n")
    return text + end, marks


def sides(text: str) -> dict[str, list[str]]:
    """What a dry run's JSON says of each op: the sides that it would be measured on."""
    return {one["op"]: one["sides"] for one in json.loads(text)["cases"]}


def test_every_verdict_is_found(tree: TinyTree, found: Path) -> None:
    """One run finds what is the same, slower, wrong, hanging, new, removed and mended; broken is the gravest: 3.

    In GitHub Actions the summary grows, counts are an output, and failures are marked where the case is written.
    """
    text, marks = split(found)
    assert "::error file=cases/tiny.yaml,line=" in marks
    assert "wrong result" in (found / "summary.md").read_text()
    assert json.loads((found / "output").read_text().removeprefix("counts="))["slower"] == 1
    assert words(text) == {
        "steady": "same",
        "slowed": "slower",
        "spoilt": "broken",
        "stuck": "broken",
        "added": "new",
        "dropped": "removed",
        "mended": "fixed",
        "untouched": "same",
    }
    reasons = {one["op"]: one["reason"] for one in json.loads(text)["cases"]}
    assert (reasons["spoilt"], reasons["stuck"]) == ("wrong result", "it timed out")
    suites = ET.parse(found / "gate.xml").getroot()  # noqa: S314  our own
    assert sum(int(suite.get("tests", "0")) for suite in suites) == 8
    assert tree.checkouts() == []


@pytest.mark.parametrize(
    ("chosen", "code", "said"),
    [
        (("--op", "steady", "-i", "nobody"), 2, "--implementation nobody matches nothing"),
        (("--op", "steady", "--op", "stedy"), 2, "did you mean 'steady'"),
        (("--case", "steady", "--case", "stedy/*"), 2, "--case stedy/* matches nothing"),
        (("--op", "/^st/", "--tag", "typo"), 2, "--tag typo matches nothing"),
        (
            ("--op", "steady", "--device", "cuda"),
            5,
            "there is no such device here; its kernels are for cpu, not for cuda:0",
        ),
    ],
)
def test_exit_codes(tree: TinyTree, chosen: tuple[str, ...], code: int, said: str) -> None:
    """2 a filter that matches nothing beside a right one, 5 nothing measured."""
    assert said in tree.opgauge("gate", "--base", FIRST, *PATIENT, *chosen, code=code)


def test_mistakes_end_with_two(tree: TinyTree, tmp_path: Path) -> None:
    """A commit that is none, a wrong case file, a wrong policy, no side to compare with: exit code 2, in a line."""
    assert "no commit 'nonsense'" in tree.opgauge("gate", "--base", "nonsense", *QUICK, code=2)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("op: steady\ncases:\n  - {name: a, shapes: {y: [3]}, dtype: float32}\n")
    assert f"{wrong}:3" in tree.opgauge("gate", str(wrong), "--base", "HEAD", *QUICK, code=2)
    wrong.write_text("defaults: {treshold: 1}\n")
    assert "threshold" in tree.opgauge("gate", "--policy", str(wrong), "--base", "HEAD", *QUICK, code=2)
    assert "not both" in tree.opgauge("gate", "--base", "HEAD", "--against", "main", *QUICK, code=2)


def test_a_tree_that_cannot_be_asked_is_reported(tree: TinyTree) -> None:
    """Where ops cannot be imported, or lack what is asked of them: 5 for the base, 3 for the head, and why."""
    before = tree.git("rev-parse", "HEAD")
    try:
        tree.write("ops/tiny/__init__.py", "import nowhere\n")
        broken = tree.commit("broken import")
        tree.git("checkout", "--quiet", before)
        text = tree.opgauge("gate", "--base", broken, *QUICK, code=5)
        assert "No module named 'nowhere'" in text
        init = (tree.path / "ops/__init__.py").read_text()
        tree.write("ops/__init__.py", init + "del find_kernel\n")
        text = tree.opgauge("gate", "--base", FIRST, *QUICK, code=3)
        assert "its ops have no opgauge.ops.find_kernel (contract" in text
    finally:
        tree.git("checkout", "--quiet", "--force", "main")
        tree.git("reset", "--quiet", "--hard", before)
    assert tree.checkouts() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_ended(tree: TinyTree, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM remove the worktree and end the workers on the way out."""
    chosen = ("--op", "stuck", "--device", "cpu", "--timeout", "50")
    with tree.start("gate", "--base", FIRST, *chosen) as process:
        while not tree.checkouts():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(number)
        process.communicate(timeout=120)
    assert process.returncode in {130, 143}
    assert tree.checkouts() == []
    assert not list(Path(f"/proc/{process.pid}/task").glob("*"))


def test_what_a_kill_left_is_swept_up(tree: TinyTree) -> None:
    """After SIGKILL a worktree and a folder of inputs remain; the next gate removes them."""
    with tree.start("gate", "--base", FIRST, "--op", "stuck", "--device", "cpu") as process:
        while not tree.checkouts() or not list(Path(gettempdir()).glob(f"opgauge-gate-{process.pid}-*")):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        process.kill()
        process.communicate(timeout=120)
    (folder,) = tree.checkouts()
    kept = list(folder.parent.parent.glob(f"opgauge-gate-{process.pid}-*"))
    assert kept
    tree.opgauge("gate", "--base", FIRST, "--op", "nonsense", *QUICK, code=2)
    assert tree.checkouts() == []
    assert not any(one.exists() for one in (folder.parent, *kept))


def test_rules_of_the_policy_that_match_no_case_are_told(tree: TinyTree, tmp_path: Path) -> None:
    """A misspelt op or name, whatever is selected; a rule for a case that is not selected is none."""
    policy = tmp_path / "policy.yaml"
    names = ("staedy", "steady/tipo*", "steady", "added")
    policy.write_text("rules:\n" + "".join(f"- {{cases: {name!r}, threshold: 0.1}}\n" for name in names))
    chosen = ("--base", FIRST, "--op", "steady", "--device", "cpu", "--policy", str(policy))
    text = tree.opgauge("gate", *chosen, "--dry-run")
    assert [name for name in names if f"rule for {name} matches no case" in text] == ["staedy", "steady/tipo*"]


def test_a_case_is_compared_whatever_it_was_called(tree: TinyTree) -> None:
    """A filter that only the new name, or only the old tag, answers to still compares both revisions of the case."""
    file = tree.path / "cases" / "other.yaml"
    before = file.read_text()
    try:
        file.write_text(before.replace("small", "renamed").replace("tags: [gate], ", ""))
        for chosen in (("--name", "renamed"), ("--tag", "gate")):
            text = tree.opgauge("gate", "--base", "HEAD", "--op", "untouched", *chosen, *LISTED, code=0)
            assert sides(text) == {"untouched": ["base", "head"]}
    finally:
        file.write_text(before)


def test_a_dry_run_lists_cases_and_measures_nothing(tree: TinyTree) -> None:
    """It ends with 0, lists each comparison once with its sides, and what is removed; the budget limits the time."""
    text = tree.opgauge("gate", "--base", FIRST, "--all", "--dry-run", "--json", code=0)
    found = json.loads(text)
    assert sides(text) == {
        **{op: ["base", "head"] for op in ("steady", "slowed", "spoilt", "stuck", "mended", "untouched")},
        "added": ["head"],
    }
    assert found["removed"] == ["dropped/small optimized on cpu"]
    assert 0 < found["expected_s"] < found["most_s"]
    gone = tree.opgauge("gate", "--base", FIRST, "--dry-run", "--op", "dropped").splitlines()
    assert gone[0] == "dropped/small optimized on cpu: removed"
    assert gone[-1].startswith("0 comparisons of 0 cases, 1 removed: about ")
    lines = tree.opgauge("gate", "--base", FIRST, "--dry-run", "--op", "stuck", "--budget", "5").splitlines()
    assert lines[0] == "stuck/small optimized on cpu"
    assert lines[-1].startswith("1 comparison of 1 case: about ")
    assert tree.checkouts() == []


def test_only_what_changed_is_compared(tree: TinyTree) -> None:
    """--changed leaves out folders without a change; shared code counts for all; no change at all is no pass.

    What is the same, new or removed passes: exit code 0.
    """
    chosen = ("--op", "steady", "--op", "untouched")
    some = (*chosen, "--op", "added", "--op", "dropped")
    text = tree.opgauge("gate", "--base", FIRST, "--changed", *PATIENT, *some, "--json", code=0)
    assert words(text) == {"steady": "same", "added": "new", "dropped": "removed"}
    assert "changed: no op" in tree.opgauge("gate", "--base", "HEAD", "--changed", *ONCE, *chosen, code=5)
    shared = tree.path / "ops/_core/errors.py"
    before = shared.read_text()
    try:
        shared.write_text(before + "\n# a comment\n")
        text = tree.opgauge("gate", "--base", "HEAD", "--changed", *chosen, *LISTED)
        assert set(sides(text)) == {"steady", "untouched"}
        text = tree.opgauge("gate", "--base", FIRST, "--trust-hash", *ONCE, *chosen, "--json")
        assert words(text)["untouched"] == "skipped"
        assert words(text)["steady"] != "skipped"
    finally:
        shared.write_text(before)


def test_policy_may_fail_what_is_new_and_demand_more(tree: TinyTree, tmp_path: Path) -> None:
    """`fail: [new]` and a min_speedup that is not met end with 1; a waiver excuses until its day."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("fail: [new]\ndefaults: {min_speedup: 1.0e+6}\n")
    text = tree.opgauge("gate", "--base", FIRST, "--op", "added", *ONCE, "--policy", str(policy), code=1)
    assert "min_speedup 1e+06" in text
    waivers = tmp_path / "waivers.yaml"
    entry = "waivers:\n  - {cases: spoilt, owner: Ada, reason: known, until: DAY, verdicts: [broken]}\n"
    chosen = ("--op", "spoilt", "--op", "dropped", *ONCE, "--waivers", str(waivers))
    waivers.write_text(entry.replace("DAY", "2999-01-01"))
    assert "excused: spoilt/small" in tree.opgauge("gate", "--base", FIRST, *chosen, code=5)
    waivers.write_text(entry.replace("DAY", "2001-01-01"))
    assert "expired" in tree.opgauge("gate", "--base", FIRST, *chosen, code=3)


def test_case_files_from_elsewhere_are_those_of_both(tree: TinyTree, tmp_path: Path) -> None:
    """A case that neither tree ships is compared all the same where both have its op; a pair leaves it undecided: 4.

    Without a base the fork point is compared with: on the default branch that is the commit before.
    """
    path = tmp_path / "mine.yaml"
    path.write_text("op: steady\ncases:\n  - {name: mine, shapes: {x: [9]}, dtype: float32}\n")
    printed = json.loads(tree.opgauge("gate", str(path), *ONCE, "--json", code=4))
    assert printed["base"]["commit"] == tree.git("rev-parse", "HEAD~1")
    (found,) = printed["cases"]
    assert (found["case"], found["kind"], found["pairs"]) == ("mine", "compared", 1)
    assert found["reason"] == "too few pairs"
    assert str(path) in found["reproduce"]


def test_the_bisection_that_the_gate_names_finds_the_commit(tree: TinyTree, found: Path, tmp_path: Path) -> None:
    """The command that JSON gives, run as it is, names the commit of four that planted the slowdown.

    It leaves the working tree alone: what is measured is a worktree beside it.
    """
    bisect = next(one["bisect"] for one in json.loads(split(found)[0])["cases"] if one["op"] == "slowed")
    assert "--bisect" in bisect
    program = tmp_path / "bin" / "opgauge"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/tools/package exec {sys.executable} -P -m opgauge "$@"\n')
    program.chmod(0o755)
    search = f"{program.parent}:{os.environ['PATH']}"
    notes, beside = tree.path / "notes.txt", TinyTree.__new__(TinyTree)
    beside.path = tree.path.parent / "opgauge-bisect"
    notes.write_text("not committed")
    try:
        done = subprocess.run(
            ["sh", "-c", f"{bisect} {' '.join(UNHURRIED)}"],
            cwd=tree.path,
            env={**os.environ, "PATH": search, "OPGAUGE_DB": f"sqlite:///{tmp_path}/x.db"},
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert beside.git("rev-parse", "bisect/bad") == tree.git("rev-parse", "HEAD~1")
        assert tree.git("rev-parse", "--abbrev-ref", "HEAD") == "main"
        assert notes.read_text() == "not committed"
    finally:
        notes.unlink()
        tree.git("worktree", "remove", "--force", str(beside.path))


@pytest.mark.parametrize(
    ("code", "slower", "broken"),
    [
        (ExitCode.PASSED, 0, 0),
        (ExitCode.SLOWER, 1, 0),
        (ExitCode.BROKEN, 125, 1),
        (ExitCode.UNDECIDED, 125, 0),
        (ExitCode.NOTHING, 125, 125),
    ],
)
def test_a_bisection_is_for_one_thing(code: ExitCode, slower: int, broken: int) -> None:
    """Looking for what is slower, a broken commit is skipped; looking for what is broken, a slower one is good."""
    outcome = GateOutcome(code, {})
    assert bisect_code(outcome) == slower
    assert bisect_code(outcome, broken=True) == broken


def test_a_case_that_was_renamed_is_the_same_case(tree: TinyTree) -> None:
    """A case goes by its content: with another name it is compared, neither new nor removed, in a dirty tree too."""
    file = tree.path / "cases" / "other.yaml"
    before = file.read_text()
    try:
        file.write_text(before.replace("small", "renamed"))
        found = json.loads(tree.opgauge("gate", "--base", "HEAD", "--op", "untouched", *ONCE, "--json", code=4))
    finally:
        file.write_text(before)
    assert [(one["case"], one["kind"]) for one in found["cases"]] == [("renamed", "compared")]
    assert found["head"]["commit"].endswith("-dirty")
    assert found["cases"][0]["bisect"] is None
