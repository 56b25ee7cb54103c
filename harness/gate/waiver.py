"""Waivers: permissions for regressions, each with an owner, a reason and a last day.

`waivers.yaml` is in the folder of the case files::

    waivers:
      - cases: p_norm/seed-1*          # op, op/case with * and ?, or a case's id
        device: cuda*                  # any device if omitted
        owner: Ada Lovelace
        reason: the wider accumulator of #123 costs this much
        until: 2026-12-31              # the last day in force
        expected_ratio: 1.15           # the new level over the old one; more is not permitted
        verdicts: [slower]             # slower if omitted; also undecided, broken
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

from opgauge.harness.case.document import YamlNode, read_documents
from opgauge.harness.case.hint import record_hints, show
from opgauge.harness.case.reading import collecting, known_entries, read_names, read_node, wrong
from opgauge.harness.errors import CaseFileError, Mistake, Position
from opgauge.harness.judge.pattern import matches_all
from opgauge.harness.judge.verdict import Comparison, Kind, Subject, Verdict

WAIVABLE = ("slower", "undecided", "broken")
"""Verdicts that a waiver may permit."""
NOWHERE = Position("")
"""Position of a waiver that is not from a file."""
REQUIRED = ("cases", "owner", "reason", "until")
"""Keys that every waiver has."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """A permission for a regression.

    cases, device, implementation: patterns. owner: person responsible. reason: explanation. until: last day in
    force, YYYY-MM-DD. expected_ratio: the new level over the old one; None permits any. verdicts: verdicts that it
    permits.
    """

    cases: str
    owner: str
    reason: str
    until: date
    device: str = "*"
    implementation: str = "*"
    expected_ratio: float | None = None
    verdicts: tuple[str, ...] = ("slower",)
    place: Position = NOWHERE

    def covers(self, subject: Subject) -> bool:
        """Whether it applies to this subject, at any date."""
        return matches_all(subject, cases=self.cases, device=self.device, implementation=self.implementation)

    def is_expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return today > self.until

    def waives(self, found: Comparison, today: date) -> bool:
        """Whether the gate accepts this verdict: right subject and verdict, in force, and no worse than expected."""
        if self.is_expired(today) or not self.covers(found.subject) or found.verdict is None:
            return False
        if str(found.verdict) not in self.verdicts:
            return False
        if self.expected_ratio is None or found.verdict is not Verdict.SLOWER:
            return True
        return found.interval is None or found.interval[0] <= self.expected_ratio


class WaiverState(StrEnum):
    """State of a waiver."""

    USED = "used"
    EXPIRED = "expired"
    UNNEEDED = "no longer needed"
    UNMATCHED = "matches no case"
    OPEN = "its cases were not compared"


@dataclass(frozen=True, slots=True)
class WaiverReview:
    """A waiver and its state in a run."""

    waiver: Waiver
    state: WaiverState

    def __str__(self) -> str:
        one = self.waiver
        return f"{one.place}: waiver for {one.cases} ({one.owner}, until {one.until}): {self.state}"


def review(waivers: Iterable[Waiver], found: Sequence[Comparison], today: date) -> tuple[WaiverReview, ...]:
    """State of each waiver, in order; all but `used` and `open` need attention."""
    return tuple(WaiverReview(waiver, _state(waiver, found, today)) for waiver in waivers)


def _state(waiver: Waiver, found: Sequence[Comparison], today: date) -> WaiverState:
    if waiver.is_expired(today):
        return WaiverState.EXPIRED
    covered = [one for one in found if waiver.covers(one.subject)]
    if not covered:
        return WaiverState.UNMATCHED
    if any(waiver.waives(one, today) for one in covered):
        return WaiverState.USED
    good = {Verdict.SAME, Verdict.FASTER}
    needless = all(one.verdict in good or one.kind in {Kind.FIXED, Kind.REMOVED} for one in covered)
    return WaiverState.UNNEEDED if needless else WaiverState.OPEN


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers of a file in order, none if it is empty; raises CaseFileError with every mistake and its position."""
    mistakes: list[Mistake] = []
    found: list[Waiver] = []
    with collecting(mistakes):
        for document in read_documents(path, mistakes):
            found += _read_document(document, mistakes)
    if mistakes:
        raise CaseFileError(sorted(dict.fromkeys(mistakes), key=lambda one: (one.place.line, one.place.column)))
    return tuple(found)


def _read_document(document: YamlNode, mistakes: list[Mistake]) -> list[Waiver]:
    keys = known_entries(document, "the waiver file", ("waivers",), mistakes)
    entries = keys.get("waivers")
    if entries is None:
        raise wrong(document.place, "waivers is missing; `waivers: []` has none")
    if not isinstance(entries.value, list):
        raise wrong(entries.place, f"waivers should be a list, not {show(entries.plain)}")
    found: list[Waiver] = []
    for entry in entries.value:
        before = len(mistakes)
        with collecting(mistakes):
            waiver = _read_waiver(entry, mistakes)
            if len(mistakes) == before:
                found.append(waiver)
    return found


def _read_waiver(entry: YamlNode, mistakes: list[Mistake]) -> Waiver:
    hints = {name: hint for name, hint in record_hints(Waiver).items() if name != "place"}
    nodes = known_entries(entry, "a waiver", hints, mistakes)
    values: dict[str, Any] = {}
    for name, node in nodes.items():
        with collecting(mistakes):
            values[name] = _read_field(name, node, hints[name])
    mistakes += [Mistake(entry.place, f"the waiver has no {name}") for name in REQUIRED if name not in nodes]
    if not set(REQUIRED) <= set(values):
        raise CaseFileError([])
    return Waiver(**values, place=entry.place)


def _read_field(name: str, node: YamlNode, hint: Any) -> Any:
    if name == "verdicts":
        return read_names(node, name, WAIVABLE)
    value = read_node(node, name, str if hint is date else hint)
    if hint is date:
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise wrong(node.place, f"{name} should be a day as YYYY-MM-DD, not {show(value)}") from error
    if isinstance(value, str) and not value.strip():
        raise wrong(node.place, f"{name} should not be empty")
    if isinstance(value, float) and not 0 < value < float("inf"):
        raise wrong(node.place, f"{name} should be a positive number, not {show(value)}")
    return value
