"""The gate's policy: limits of each case, and failing verdicts.

`policy.yaml` is in the folder of the case files. A case's own `gate` overrides the rules, later rules override
earlier ones, and rules override `defaults`::

    fail: [slower, broken, undecided]                # also: new, removed
    exact: [launches, allocations, peak_bytes, spills]
    defaults: {budget_s: 2}
    rules:
      - {cases: p_norm, device: "cuda*", threshold: 0.02, min_speedup: 5}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from opgauge.harness.case.case import GatePolicy
from opgauge.harness.case.document import YamlNode, read_documents
from opgauge.harness.case.hint import record_hints, show
from opgauge.harness.case.reading import collecting, known_entries, read_names, read_node, wrong
from opgauge.harness.case.rules import check_gate
from opgauge.harness.errors import CaseError, CaseFileError, Mistake, Position
from opgauge.harness.judge.pattern import matches, matches_all
from opgauge.harness.judge.verdict import DEFAULT_EXACT, Metrics, Rule, Subject

FAILABLE = ("slower", "broken", "undecided", "new", "removed")
"""Verdicts and kinds that may fail."""
NOTHING_ASKED = GatePolicy()
"""Limits of a case without any."""
NOWHERE = Position("")
"""Position of a rule that is not from a file."""
_EXACT = tuple(item.name for item in fields(Metrics))
_ASKED = tuple(item.name for item in fields(GatePolicy))
_CHOICE = ("cases", "device", "implementation")


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Limits for the cases of a pattern."""

    cases: str
    asked: GatePolicy
    device: str = "*"
    implementation: str = "*"
    place: Position = NOWHERE

    def covers(self, subject: Subject) -> bool:
        """Whether the rule applies to this subject."""
        return matches_all(subject, cases=self.cases, device=self.device, implementation=self.implementation)


@dataclass(frozen=True, slots=True)
class Policy:
    """The gate's rules: failing verdicts, and limits per case.

    fail: verdicts and kinds that fail; a case that was not measured never passes in any case. exact: metrics
    without noise of which more is slower.
    """

    fail: tuple[str, ...] = ("slower", "broken", "undecided")
    exact: tuple[str, ...] = DEFAULT_EXACT
    defaults: GatePolicy = NOTHING_ASKED
    rules: tuple[PolicyRule, ...] = ()

    def asked_of(self, subject: Subject, own: GatePolicy = NOTHING_ASKED) -> GatePolicy:
        """Limits of a case; `own` has those of its case file."""
        asked = self.defaults
        for rule in self.rules:
            if rule.covers(subject):
                asked = _over(asked, rule.asked)
        return _over(asked, own)

    def rule_of(self, subject: Subject, own: GatePolicy = NOTHING_ASKED, *, most_pairs: int = 10) -> Rule:
        """The rule of a case's comparison. A threshold without `same_within` is the margin of `same` as well."""
        asked = self.asked_of(subject, own)
        rule = Rule(exact=self.exact)
        rule = replace(rule, alarm_pairs=min(rule.alarm_pairs, most_pairs))
        if asked.threshold is not None:
            rule = replace(rule, threshold=asked.threshold, same_within=asked.threshold)
        return rule if asked.same_within is None else replace(rule, same_within=asked.same_within)

    def unmatched(self, subjects: Iterable[Subject]) -> tuple[PolicyRule, ...]:
        """Rules that name none of the subjects' cases, on whatever device, and are probably misspelt."""
        known = list(subjects)
        return tuple(rule for rule in self.rules if not any(matches(rule.cases, subject) for subject in known))


def _over(below: GatePolicy, above: GatePolicy) -> GatePolicy:
    """Two policies merged; values of the second take precedence."""
    return replace(below, **{name: value for name, value in vars(above).items() if value is not None})


def load_policy(path: Path) -> Policy:
    """The policy of a file, the default if it is empty; raises CaseFileError with every mistake and its position."""
    mistakes: list[Mistake] = []
    found = Policy()
    with collecting(mistakes):
        documents = read_documents(path, mistakes)
        if len(documents) > 1:
            raise wrong(documents[1].place, "a policy file has one document")
        if documents:
            found = _read_policy(documents[0], mistakes)
    if mistakes:
        raise CaseFileError(sorted(dict.fromkeys(mistakes), key=lambda one: (one.place.line, one.place.column)))
    return found


def _read_policy(document: YamlNode, mistakes: list[Mistake]) -> Policy:
    keys = known_entries(document, "the policy", [item.name for item in fields(Policy)], mistakes)
    found = Policy()
    if "fail" in keys:
        with collecting(mistakes):
            found = replace(found, fail=read_names(keys["fail"], "fail", FAILABLE))
    if "exact" in keys:
        with collecting(mistakes):
            found = replace(found, exact=read_names(keys["exact"], "exact", _EXACT))
    if "defaults" in keys:
        with collecting(mistakes):
            nodes = known_entries(keys["defaults"], "defaults", _ASKED, mistakes)
            found = replace(found, defaults=_read_asked(nodes, mistakes))
    if "rules" in keys:
        with collecting(mistakes):
            found = replace(found, rules=_read_rules(keys["rules"], mistakes))
    return found


def _read_rules(entries: YamlNode, mistakes: list[Mistake]) -> tuple[PolicyRule, ...]:
    if not isinstance(entries.value, list):
        raise wrong(entries.place, f"rules should be a list, not {show(entries.plain)}")
    found = []
    for entry in entries.value:
        with collecting(mistakes):
            found.append(_read_rule(entry, mistakes))
    return tuple(found)


def _read_rule(entry: YamlNode, mistakes: list[Mistake]) -> PolicyRule:
    nodes = known_entries(entry, "a rule", (*_CHOICE, *_ASKED), mistakes)
    asked = _read_asked({name: node for name, node in nodes.items() if name in _ASKED}, mistakes)
    if "cases" not in nodes:
        raise wrong(entry.place, "the rule has no cases")
    choice = {name: read_node(nodes[name], name, str) for name in _CHOICE if name in nodes}
    return PolicyRule(**choice, asked=asked, place=entry.place)


def _read_asked(nodes: dict[str, YamlNode], mistakes: list[Mistake]) -> GatePolicy:
    hints = record_hints(GatePolicy)
    found = NOTHING_ASKED
    for name, node in nodes.items():
        with collecting(mistakes):
            asked = GatePolicy(**{name: read_node(node, name, hints[name])})
            try:
                found = _over(found, check_gate(asked))
            except CaseError as error:
                raise wrong(node.place, str(error)) from error
    return found
