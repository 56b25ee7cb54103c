"""The gate's reports: they say the same, explain themselves, and nothing in a name can break them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer import BadParameter

from opgauge.harness.cli.gate_options import refuse_unwritable
from opgauge.harness.cli.gate_reports import Reports, write
from opgauge.harness.gate import report
from opgauge.harness.gate.annotation import annotate
from opgauge.harness.gate.gate import judge
from opgauge.harness.gate.junit import junit
from opgauge.harness.gate.markdown import markdown, text
from opgauge.harness.gate.policy import Policy
from opgauge.harness.gate.record import BASE, BlockOutcome
from opgauge.harness.gate.table import show
from opgauge.harness.gate.waiver import Waiver
from opgauge.harness.judge.verdict import Comparison, Kind, Reason, Subject, Verdict
from opgauge.harness.result.result import Check, Status
from tests.gateruns import a_run, compared

HOSTILE = (
    "a|b`c`<script>alert(1)</script>[x](https://evil.example)@ada **bold** "
    "www.evil.example\n::error::x &amp; \x00\x1b[31m"
)
ALLOWED = {
    "testsuites": {"name"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testcase": {"classname", "name", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
}
"""JUnit's elements and their attributes, as the schemas of the readers know them."""
CHILDREN = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure", "error", "skipped"}}


def check_junit(found: str) -> ET.Element:
    """The document, if it is well-formed JUnit whose counts add up."""
    root = ET.fromstring(found)  # noqa: S314  our own
    for element in root.iter():
        assert set(element.attrib) <= ALLOWED[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    for suite in root:
        assert int(suite.get("tests", "0")) == len(suite)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(name, "0")) == len(suite.findall(f"testcase/{tag}"))
    return root


def some() -> list[Comparison]:
    """One of each."""
    broken = replace(compared("broken", 1.0, verdict=Verdict.BROKEN), reason=Reason.WRONG, detail="y: 3 of 8 wrong")
    new = replace(compared("new", 1.0), kind=Kind.NEW, verdict=None, reason=Reason.NO_BASE)
    undecided = compared("wide", 1.05, verdict=Verdict.UNDECIDED)
    return [compared("same", 1.0), compared("slow", 1.3), broken, new, undecided, compared("dot", 1.0, op="dot")]


def test_junit_says_what_failed() -> None:
    """Slower and undecided are failures, broken is an error, new is skipped; counts add up."""
    root = check_junit(junit(a_run(some())))
    tags = {case.get("name", "").split(" ")[0]: [child.tag for child in case] for case in root.iter("testcase")}
    assert tags == {
        "same": [],
        "slow": ["failure"],
        "broken": ["error"],
        "new": ["skipped"],
        "wide": ["failure"],
        "dot": [],
    }


def test_a_run_of_nothing_is_an_error_in_junit() -> None:
    """No test case at all would be read as a pass."""
    root = check_junit(junit(a_run([])))
    assert [error.get("message") for error in root.iter("error")] == ["nothing was measured"]


def test_markdown_explains_itself() -> None:
    """A flagged case comes with interval, blocks, clock, kernels, calibration, and commands to reproduce and bisect."""
    found = markdown(a_run(some()))
    assert "slower 1" in found.replace("1 slower", "slower 1")
    for said in (
        "+29.0 … +31.0 %",
        "1980 MHz",
        "kernel sign&#95;rows",
        "2.0 % in 0.8 s",
        "calibration workload:",
        "in 99 of 100 runs",
    ):
        assert said in found
    assert "opgauge gate --base aaaaaaaaaaaa --case 0123456789abcdef -i optimized --device cuda:0" in found
    assert "git bisect start bbbbbbbbbbbb aaaaaaaaaaaa -- ops" in found
    assert "--bisect-broken" in found
    assert "0 % of it sampling" in found


def test_hostile_names_stay_text() -> None:
    """Markup, HTML, links, mentions, pipes and control characters in a name do nothing in any report."""
    run = a_run([compared(HOSTILE, 1.3)], notes=(HOSTILE,))
    found = markdown(run)
    for bad in ("<script", "`c`", "](", "@ada", "**bold**", "www.", "https://", "\x00", "\x1b", "a|b"):
        assert bad not in found
    rows = [line for line in found.splitlines() if line.startswith("| slower")]
    assert len(rows) == 1
    assert len(re.findall(r"\|", rows[0])) == 11
    check_junit(junit(run))
    for line in annotate(run):
        assert "\n" not in line
        assert line.startswith("::error ")
    console = Console(record=True, width=200, file=None, quiet=False)
    with console.capture() as shown:
        show(run, console)
    assert "[x](https://evil.example)" in "".join(shown.get().split()).replace("\n", "")


@settings(max_examples=50)
@given(st.text())
def test_any_text_is_one_line_without_markup(value: str) -> None:
    """What is escaped has no character that Markdown, HTML or a table gives a meaning to."""
    assert not set(text(value).replace("&#", "").replace(";", "")) & set("|`<>*_[]@\\\n\r~#!$^{}")


def test_annotations_point_at_the_case() -> None:
    """Each failure names file and line of its case; the first few only."""
    lines = annotate(a_run([compared(f"slow {number}", 1.3) for number in range(30)]))
    assert len(lines) == 10
    assert all(line.startswith("::error file=cases/sign.yaml,line=7,title=") for line in lines)


def test_the_gravest_failure_is_named_first() -> None:
    """Only ten annotations and three commands are shown: a broken case after many undecided ones is among them."""
    undecided = [compared(f"open {number}", 1.0, verdict=Verdict.UNDECIDED) for number in range(12)]
    run = a_run([*undecided, compared("slow", 1.3), compared("wrong", 1.0, verdict=Verdict.BROKEN)])
    lines = annotate(run)
    assert len(lines) == 10
    assert [text in line for line, text in zip(lines, ("sign/wrong", "sign/slow"), strict=False)] == [True, True]
    console = Console(width=300, quiet=False)
    run = replace(run, found=tuple(replace(one, subject=_numbered(one, place)) for place, one in enumerate(run.found)))
    run = replace(run, outcome=judge(run.found, Policy(), today=date(2026, 11, 1)))
    with console.capture() as shown:
        show(run, console)
    commands = [line for line in shown.get().splitlines() if line.startswith("again:")]
    assert [command.partition("--case ")[2].split()[0] for command in commands] == ["id13", "id12", "id0"]


def _numbered(found: Comparison, place: int) -> Subject:
    return replace(found.subject, case_id=f"id{place}")


def test_what_the_policy_allows_is_a_warning() -> None:
    """Undecided cases then fail nothing, and do not look like passed ones: skipped in JUnit, a warning on GitHub."""
    found = [compared("open", 1.0, verdict=Verdict.UNDECIDED), compared("slow", 1.3)]
    allowed = judge(found, Policy(fail=("slower", "broken")), today=date(2026, 11, 1))
    run = replace(a_run(found), outcome=allowed)
    assert [line.split(" ")[0] for line in annotate(run)] == ["::error", "::warning"]
    assert [[child.tag for child in test] for test in check_junit(junit(run)).iter("testcase")] == [
        ["skipped"],
        ["failure"],
    ]
    waiver = Waiver("sign/*", "Ada", "known", date(2026, 12, 1), verdicts=("slower", "undecided"))
    run = replace(run, outcome=judge(found, Policy(), today=date(2026, 11, 1), waivers=[waiver]))
    assert annotate(run) == []
    cases = check_junit(junit(run)).iter("testcase")
    assert [[child.tag for child in case] for case in cases] == [[], []]


def test_json_holds_everything() -> None:
    """The JSON is finite, has a case for each comparison, gravest first, with blocks of both sides."""
    plain = json.loads(json.dumps(report.as_plain(a_run(some())), allow_nan=False))
    assert plain["exit_code"] == 3
    assert [one["verdict"] for one in plain["cases"]][:3] == ["broken", "slower", "undecided"]
    assert plain["cases"][1]["sides"]["head"]["blocks_ns"] == [1300.0, 1301.0, 1302.0, 1303.0]


@pytest.mark.parametrize("name", ["$(touch x)", "'; rm -rf /", "a b"])
def test_commands_hold_no_name_of_a_case(name: str) -> None:
    """What a person copies into a shell has the case's id, whatever its name."""
    run = a_run([compared(name, 1.3)])
    assert name not in report.bisect(run, run.found[0])


def test_what_is_not_committed_is_not_bisected() -> None:
    """In a dirty tree the change may be in no commit: there is a command to reproduce, and none to bisect."""
    run = a_run([compared("slow", 1.3)])
    dirty = replace(run, head=replace(run.head, commit=f"{run.head.commit}-dirty"))
    assert report.bisect(run, run.found[0])
    assert report.bisect(dirty, run.found[0]) == ""
    assert "git bisect" not in markdown(dirty)


def test_only_what_became_worse_is_bisected() -> None:
    """No commit is to be found where the base was wrong or is not there, nor where nothing was shown."""
    run = a_run(some())
    assert [one.subject.case for one in run.found if report.bisect(run, one)] == ["slow", "broken"]
    subject = run.found[2].subject
    wrong = BlockOutcome(Status.OK, check=Check(ok=False, max_abs_error=1.0, max_rel_error=1.0, worst=9.0))
    for blocks in ({0: wrong}, {0: BlockOutcome(Status.ERROR)}, {}):
        run.records[subject].outcomes[BASE].clear()
        run.records[subject].outcomes[BASE].update(blocks)
        assert report.bisect(run, run.found[2]) == ""
        assert "--bisect-broken" not in markdown(run)


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The disk may be full after an hour of measuring: the other report is written, and the verdict stays."""
    good = tmp_path / "gate.md"
    write(a_run([]), Reports(junit=Path("/dev/full"), markdown=good))
    assert capsys.readouterr().err == "opgauge: /dev/full cannot be written: No space left on device\n"
    assert "opgauge gate" in good.read_text()


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    """What cannot be written is refused before anything is measured."""
    with pytest.raises(BadParameter, match="is a folder"):
        refuse_unwritable(tmp_path)
    with pytest.raises(BadParameter, match="there is no folder"):
        refuse_unwritable(tmp_path / "absent" / "gate.md")
    refuse_unwritable(None, tmp_path / "gate.md")
