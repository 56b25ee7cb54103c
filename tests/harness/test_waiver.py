"""Waivers: what they excuse, how long, and what is said of those that no longer matter."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from textwrap import dedent

import pytest

from opgauge.harness.errors import CaseFileError
from opgauge.harness.gate.waiver import Waiver, WaiverState, load_waivers, review
from opgauge.harness.judge.pattern import matches
from opgauge.harness.judge.verdict import Comparison, Kind, Reason, Subject, Verdict

TODAY = date(2026, 6, 1)
SUBJECT = Subject("p_norm", "seed-1[float32,porder=2]", "0123456789abcdef", "optimized", "cuda:0")


def compared(verdict: Verdict | None, *, low: float = 1.05, kind: Kind = Kind.COMPARED) -> Comparison:
    """A comparison of the one subject, with an interval from `low`."""
    return Comparison(SUBJECT, kind, verdict, Reason.BEYOND, interval=(low, low + 0.1))


def waiver(
    cases: str = "p_norm/seed-1*", *, until: date = TODAY, ratio: float | None = None, device: str = "*"
) -> Waiver:
    """A waiver that counts today."""
    return Waiver(cases, "Ada", "known", until, device=device, expected_ratio=ratio)


def load(folder: Path, text: str) -> tuple[Waiver, ...]:
    """The waivers of a file with this text."""
    path = folder / "waivers.yaml"
    path.write_text(dedent(text), encoding="utf-8")
    return load_waivers(path)


def mistakes_of(folder: Path, text: str) -> list[tuple[int, int, str]]:
    """Line, column and text of every mistake."""
    with pytest.raises(CaseFileError) as caught:
        load(folder, text)
    return [(one.place.line, one.place.column, one.text) for one in caught.value.mistakes]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("p_norm", True),
        ("p_*", True),
        ("*/seed-1*", True),
        ("p_norm/seed-1[float32,porder=2]", True),
        ("p_norm/seed-1[float32,porder=?]", True),
        ("0123456789abcdef", True),
        ("p_norm/seed-1", False),
        ("norm/*", False),
        ("P_NORM", False),
    ],
)
def test_patterns_take_brackets_as_they_are(pattern: str, *, expected: bool) -> None:
    """`*` and `?` are wild; an op alone means all of its cases; names keep their brackets."""
    assert matches(pattern, SUBJECT) is expected


def test_a_waiver_is_read_with_all_its_fields(tmp_path: Path) -> None:
    """What the file says, defaults for the rest, and where it stands."""
    first, second = load(
        tmp_path,
        """\
        waivers:
          - cases: p_norm/seed-1*
            device: cuda*
            implementation: optimized
            owner: Ada Lovelace
            reason: "the wider accumulator of #123"
            until: 2026-12-31
            expected_ratio: 1.15
            verdicts: [slower, undecided]
          - {cases: lerp, owner: Bob, reason: noisy, until: "2026-07-01"}
        """,
    )
    assert (first.owner, first.until, first.expected_ratio) == ("Ada Lovelace", date(2026, 12, 31), 1.15)
    assert first.verdicts == ("slower", "undecided")
    assert str(first.place).endswith("waivers.yaml:2:5")
    assert (second.device, second.expected_ratio, second.verdicts) == ("*", None, ("slower",))
    assert load(tmp_path, "waivers: []\n") == ()


def test_every_mistake_is_told_with_its_place(tmp_path: Path) -> None:
    """Misspelt and missing keys, impossible days, ratios and verdicts, all in one go."""
    found = mistakes_of(
        tmp_path,
        """\
        waivers:
          - {cases: lerp, owner: Bob, reason: noisy, until: 2026-02-30}
          - {cases: lerp, ower: Bob, reason: " ", until: 2026-02-01}
          - {cases: lerp, owner: Bob, reason: x, until: 2026-02-01, expected_ratio: -1, verdicts: [slow]}
          - lerp
        """,
    )
    assert found == [
        (2, 53, "until should be a day as YYYY-MM-DD, not '2026-02-30'"),
        (3, 5, "the waiver has no owner"),
        (3, 19, "unknown key 'ower' of a waiver; did you mean 'owner'?"),
        (3, 38, "reason should not be empty"),
        (4, 77, "expected_ratio should be a positive number, not -1.0"),
        (4, 92, "unknown name 'slow' in verdicts; did you mean 'slower'?"),
        (5, 5, "a waiver should be a mapping, not 'lerp'"),
    ]


def test_a_file_that_holds_no_waivers_is_a_mistake(tmp_path: Path) -> None:
    """A missing or misspelt list, another type, and a file that is not there."""
    assert mistakes_of(tmp_path, "waiver: []\n") == [
        (1, 1, "unknown key 'waiver' of the waiver file; did you mean 'waivers'?"),
        (1, 1, "waivers is missing; `waivers: []` has none"),
    ]
    assert mistakes_of(tmp_path, "waivers: 3\n") == [(1, 10, "waivers should be a list, not 3")]
    with pytest.raises(CaseFileError, match="no such file"):
        load_waivers(tmp_path / "none.yaml")


def test_an_empty_file_has_no_waivers(tmp_path: Path) -> None:
    """The last one was removed, and a comment may be left."""
    assert load(tmp_path, "# none at present\n") == ()


def test_a_waiver_waives_until_the_end_of_its_day() -> None:
    """The last day counts, the next one does not."""
    assert waiver().waives(compared(Verdict.SLOWER), TODAY)
    assert not waiver().waives(compared(Verdict.SLOWER), date(2026, 6, 2))


def test_a_waiver_waives_no_more_than_it_expects() -> None:
    """A slowdown surely beyond the expected level is not excused; nor is another device or verdict."""
    assert waiver(ratio=1.15).waives(compared(Verdict.SLOWER, low=1.1), TODAY)
    assert not waiver(ratio=1.15).waives(compared(Verdict.SLOWER, low=1.2), TODAY)
    assert not waiver(device="cpu").waives(compared(Verdict.SLOWER), TODAY)
    assert not waiver().waives(compared(Verdict.BROKEN), TODAY)
    assert not waiver().waives(compared(None, kind=Kind.UNMEASURED), TODAY)


@pytest.mark.parametrize(
    ("one", "found", "state"),
    [
        (waiver(), compared(Verdict.SLOWER), WaiverState.USED),
        (waiver(until=date(2026, 5, 31)), compared(Verdict.SLOWER), WaiverState.EXPIRED),
        (waiver(), compared(Verdict.SAME), WaiverState.UNNEEDED),
        (waiver(), compared(Verdict.FASTER), WaiverState.UNNEEDED),
        (waiver("lerp"), compared(Verdict.SLOWER), WaiverState.UNMATCHED),
        (waiver(), compared(Verdict.UNDECIDED), WaiverState.OPEN),
        (waiver(), compared(None, kind=Kind.UNMEASURED), WaiverState.OPEN),
    ],
)
def test_waivers_that_no_longer_matter_are_reported(one: Waiver, found: Comparison, state: WaiverState) -> None:
    """Used, expired, not needed, without a case, or not tried."""
    (standing,) = review([one], [found], TODAY)
    assert standing.state is state
    assert str(state) in str(standing)
