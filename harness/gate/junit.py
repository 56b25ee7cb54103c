"""The gate's verdicts as JUnit XML, for CI systems that display tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from opgauge.harness.counting import counted
from opgauge.harness.gate import report
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Comparison, Kind, Verdict

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(run: GateRun) -> str:
    """A suite per op, a test per case: slower and undecided fail, broken is an error, the rest is skipped.

    A case with a waiver passes; a demand that is not met fails its case. A verdict that the policy allows is skipped.
    """
    root = ET.Element("testsuites", name="opgauge gate")
    by_op: dict[str, list[Comparison]] = {}
    for one in run.found:
        by_op.setdefault(one.subject.op, []).append(one)
    for op, found in by_op.items():
        root.append(_suite(op, [_test(run, one) for one in found]))
    if not run.found:
        nothing, kind = ET.Element("testcase", classname="opgauge", name="gate"), run.outcome.code.name.lower()
        ET.SubElement(nothing, "error", type=kind, message=_clean(": ".join(("nothing was measured", *run.notes))))
        root.append(_suite("opgauge", [nothing]))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(name: str, tests: Iterable[ET.Element]) -> ET.Element:
    tests = list(tests)
    kinds = Counter(child.tag for test in tests for child in test)
    suite = ET.Element("testsuite", name=_clean(name), tests=str(len(tests)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(kinds[tag]))
    suite.set("time", f"{sum(float(test.get('time', '0')) for test in tests):.3f}")
    suite.extend(tests)
    return suite


def _test(run: GateRun, found: Comparison) -> ET.Element:
    subject = found.subject
    name = f"{subject.case} · {subject.implementation} · {subject.device}"
    test = ET.Element("testcase", classname=_clean(f"opgauge.{subject.op}"), name=_clean(name))
    record = run.records.get(subject)
    test.set("time", f"{record.sampling_s:.3f}" if record else "0.000")
    breaches = [str(one) for one in run.outcome.breaches if one.subject == subject]
    message = _clean(report.why(found))
    if any(one is found for one in run.outcome.failures):
        tag = "error" if found.verdict is Verdict.BROKEN or found.kind is Kind.UNMEASURED else "failure"
        child = ET.SubElement(test, tag, type=report.word(found), message=message)
        child.text = _clean("\n".join(_lines(run, found)))
    elif breaches:
        ET.SubElement(test, "failure", type="demand", message=_clean("; ".join(breaches)))
    elif found.verdict is None or any(one is found for one in report.tolerated(run)):
        ET.SubElement(test, "skipped", message=f"{report.word(found)}: {message}")
    return test


def _lines(run: GateRun, found: Comparison) -> list[str]:
    return [
        f"change {report.percent(found.ratio)}, 99 % interval {report.interval(found)}, {counted(found.pairs, 'pair')}",
        f"reproduce: {report.reproduce(run, found)}",
    ]


def _clean(text: str) -> str:
    """The text without characters that XML does not permit."""
    return _UNPRINTABLE.sub("�", text)
