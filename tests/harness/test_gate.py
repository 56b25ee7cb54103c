"""The gate: policies, demands, exit codes, and who gets more pairs."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import GatePolicy
from opgauge.harness.errors import CaseFileError
from opgauge.harness.gate.gate import Breach, ExitCode, Facts, Schedule, Spending, check_demands, judge, more_pairs
from opgauge.harness.gate.policy import Policy, PolicyRule, load_policy
from opgauge.harness.gate.waiver import Waiver, WaiverState
from opgauge.harness.judge.verdict import Comparison, Kind, Reason, Subject, Verdict

TODAY = date(2026, 6, 1)
DEFAULT = Policy()


def subject(name: str = "a", op: str = "sign", device: str = "cuda:0") -> Subject:
    """A case."""
    return Subject(op, name, name, "optimized", device)


def found(
    verdict: Verdict | None,
    reason: Reason = Reason.BEYOND,
    *,
    kind: Kind = Kind.COMPARED,
    name: str = "a",
    pairs: int = 10,
    ratio: float = 1.1,
) -> Comparison:
    """A comparison."""
    return Comparison(subject(name), kind, verdict, reason, pairs=pairs, ratio=ratio, interval=(ratio, ratio))


SAME = found(Verdict.SAME, Reason.WITHIN, name="same")
NEW = found(None, Reason.NO_BASE, kind=Kind.NEW)
REMOVED = found(None, Reason.NO_HEAD, kind=Kind.REMOVED)
NOTHING = found(None, Reason.NO_DATA, kind=Kind.UNMEASURED)
SLOWER, BROKEN = found(Verdict.SLOWER), found(Verdict.BROKEN, Reason.WRONG)
UNDECIDED = found(Verdict.UNDECIDED, Reason.TOO_WIDE)


def code(*comparisons: Comparison, policy: Policy = DEFAULT, breaches: tuple[Breach, ...] = ()) -> ExitCode:
    """The exit code of comparisons."""
    return judge(comparisons, policy, today=TODAY, breaches=breaches).code


# --- the outcome


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([SAME, found(Verdict.FASTER)], 0),
        ([SAME, SLOWER], 1),
        ([SAME, BROKEN], 3),
        ([SAME, UNDECIDED], 4),
        ([], 5),
        ([NOTHING], 5),
        ([REMOVED], 5),
        ([found(None, Reason.UNSUPPORTED, kind=Kind.UNSUPPORTED)], 5),
        ([NOTHING, SAME], 4),
        ([BROKEN, SLOWER, UNDECIDED, NOTHING], 3),
        ([SLOWER, UNDECIDED, NOTHING], 1),
        ([NEW, REMOVED, SAME], 0),
        ([NEW], 0),
        ([NEW, REMOVED], 5),
    ],
)
def test_the_exit_code_says_the_gravest(comparisons: list[Comparison], expected: int) -> None:
    """Broken before slower before undecided; nothing measured is no pass."""
    assert code(*comparisons) == expected


def test_the_policy_says_what_fails() -> None:
    """New and removed cases fail on request, undecided ones pass on request, missing ones never."""
    assert code(NEW, SAME, policy=Policy(fail=("new",))) is ExitCode.SLOWER
    assert code(REMOVED, SAME, policy=Policy(fail=("removed",))) is ExitCode.SLOWER
    assert code(UNDECIDED, SAME, policy=Policy(fail=("slower",))) is ExitCode.PASSED
    assert code(NOTHING, SAME, policy=Policy(fail=())) is ExitCode.UNDECIDED


def test_a_waiver_excuses_and_is_told() -> None:
    """The case leaves the failures, the counts stay, the waiver is used; an expired one excuses nothing."""
    good = Waiver("sign", "Ada", "known", TODAY)
    outcome = judge([SLOWER, SAME], DEFAULT, today=TODAY, waivers=[good])
    assert outcome.passed
    assert outcome.excused == ((SLOWER, good),)
    assert outcome.counts == {"slower": 1, "same": 1}
    assert outcome.waivers[0].state is WaiverState.USED
    late = judge([SLOWER, SAME], DEFAULT, today=date(2026, 6, 2), waivers=[good])
    assert (late.code, late.failures, late.waivers[0].state) == (ExitCode.SLOWER, (SLOWER,), WaiverState.EXPIRED)


@settings(max_examples=50)
@given(st.lists(st.sampled_from([SAME, SLOWER, BROKEN, UNDECIDED, NOTHING, NEW, REMOVED]), max_size=6))
def test_a_pass_means_all_measured_and_decided(comparisons: list[Comparison]) -> None:
    """Exit code 0 only without a slower, broken, undecided or unmeasured case, and with a compared or only new ones."""
    bad = {"slower", "broken", "undecided", "unmeasured"}
    words = {str(one.verdict or one.kind) for one in comparisons}
    enough = "same" in words or words == {"new"}
    assert (code(*comparisons) == 0) == (not words & bad and enough)


# --- demands inside one run


def test_demands_are_checked_exactly() -> None:
    """A speedup of 5 meets 5; 4.9 does not; two launches break max_launches 1."""
    asked = GatePolicy(min_speedup=5, min_ceiling=0.5, max_launches=1)
    assert check_demands(Facts(subject(), 5.0, 0.5, 1), asked) == ()
    missed = check_demands(Facts(subject(), 4.9, 0.4, 2), asked)
    assert [(one.demand, one.asked, one.found) for one in missed] == [
        ("min_speedup", 5, 4.9),
        ("min_ceiling", 0.5, 0.4),
        ("max_launches", 1, 2),
    ]
    assert code(SAME, breaches=missed) is ExitCode.SLOWER
    assert check_demands(Facts(subject()), GatePolicy()) == ()


def test_a_demand_that_cannot_be_judged_is_no_pass() -> None:
    """Launches that nobody counted are undecided."""
    missed = check_demands(Facts(subject()), GatePolicy(max_launches=1))
    assert code(SAME, breaches=missed) is ExitCode.UNDECIDED
    assert str(missed[0]) == "sign/a optimized on cuda:0: max_launches 1: not known"


# --- the policy


def test_the_cases_own_word_comes_first() -> None:
    """Case over later rule over earlier rule over defaults, field by field."""
    policy = Policy(
        defaults=GatePolicy(threshold=0.1, budget_s=2),
        rules=(
            PolicyRule("sign", GatePolicy(threshold=0.05, min_speedup=3)),
            PolicyRule("sign/a*", GatePolicy(threshold=0.04), device="cuda*"),
            PolicyRule("lerp", GatePolicy(threshold=0.9)),
        ),
    )
    assert policy.asked_of(subject(), GatePolicy(min_speedup=7)) == GatePolicy(0.04, 7, budget_s=2)
    assert policy.asked_of(subject(device="cpu")).threshold == 0.05
    assert policy.asked_of(subject(op="dot")) == GatePolicy(0.1, budget_s=2)
    assert [rule.cases for rule in policy.unmatched([subject()])] == ["lerp"]


def test_a_threshold_that_is_asked_for_is_that_of_same_too() -> None:
    """By default 1 % is slower and 5 % the same; 3 % asked for is both."""
    assert (DEFAULT.rule_of(subject()).threshold, DEFAULT.rule_of(subject()).same_within) == (0.01, 0.05)
    rule = DEFAULT.rule_of(subject(), GatePolicy(threshold=0.03), most_pairs=6)
    assert (rule.threshold, rule.same_within, rule.alarm_pairs) == (0.03, 0.03, 6)


def load(folder: Path, text: str) -> Policy:
    """The policy of a file with this text."""
    path = folder / "policy.yaml"
    path.write_text(dedent(text), encoding="utf-8")
    return load_policy(path)


def test_an_empty_policy_file_asks_for_nothing(tmp_path: Path) -> None:
    """As if there were none, and never an error that speaks of cases."""
    assert load(tmp_path, "# rules: none yet\n") == Policy()


def test_a_policy_file_is_read(tmp_path: Path) -> None:
    """All keys, and defaults for what is left out."""
    policy = load(
        tmp_path,
        """\
        fail: [slower, broken, undecided, removed]
        exact: [launches, registers]
        defaults: {budget_s: 2}
        rules:
          - {cases: p_norm/seed-*, device: "cuda*", threshold: 0.02, min_speedup: 5, min_ceiling: 0.6, max_launches: 1}
        """,
    )
    assert policy.fail == ("slower", "broken", "undecided", "removed")
    assert policy.exact == ("launches", "registers")
    assert policy.defaults == GatePolicy(budget_s=2)
    assert policy.rules[0].asked == GatePolicy(0.02, 5, 0.6, 1)
    assert policy.rules[0].device == "cuda*"
    assert load(tmp_path, "{}\n") == DEFAULT


def test_every_mistake_of_a_policy_has_its_place(tmp_path: Path) -> None:
    """Unknown keys, names and impossible figures, in one go."""
    with pytest.raises(CaseFileError) as caught:
        load(
            tmp_path,
            """\
            fail: [slow]
            default: {}
            defaults: {threshold: -1}
            rules:
              - {threshold: 0.1}
              - {cases: a, budget: 2, min_ceiling: 2}
            """,
        )
    assert [(one.place.line, one.place.column, one.text) for one in caught.value.mistakes] == [
        (1, 8, "unknown name 'slow' in fail; did you mean 'slower'?"),
        (2, 1, "unknown key 'default' of the policy; did you mean 'defaults'?"),
        (3, 23, "threshold should be a positive number, not -1.0"),
        (5, 5, "the rule has no cases"),
        (6, 16, "unknown key 'budget' of a rule; did you mean 'budget_s'?"),
        (6, 40, "min_ceiling is a share from 0 to 1, not 2.0"),
    ]


# --- more pairs


def test_only_the_undecided_get_more_pairs() -> None:
    """Two more at a time, ten at most; an alarm to be confirmed gets all that are left."""
    open_cases = [
        found(Verdict.UNDECIDED, Reason.TOO_WIDE, name="wide", pairs=4),
        found(Verdict.UNDECIDED, Reason.UNCONFIRMED, name="alarm", pairs=4),
        found(Verdict.UNDECIDED, Reason.BIMODAL, name="modes", pairs=9),
        found(Verdict.SLOWER, Reason.LAUNCHES, name="maybe-faster", pairs=4, ratio=0.8),
    ]
    closed = [
        found(Verdict.UNDECIDED, Reason.TOO_WIDE, name="spent", pairs=10),
        found(Verdict.SAME, Reason.WITHIN, pairs=4),
        found(Verdict.SLOWER, Reason.LAUNCHES, name="costlier", pairs=4),
        BROKEN,
        NOTHING,
        NEW,
    ]
    wanted = more_pairs([*open_cases, *closed], {})
    assert {one.case: count for one, count in wanted.items()} == {
        "wide": 2,
        "alarm": 6,
        "modes": 1,
        "maybe-faster": 2,
    }
    assert more_pairs(open_cases[:1], {}, Schedule(step=4, most=6)) == {subject("wide"): 2}


@pytest.mark.parametrize(("budget_s", "count"), [(None, 6), (2.5, 6), (2.0, 4), (1.5, 2), (1.3, 0), (0.5, 0)])
def test_a_budget_ends_the_measuring(budget_s: float | None, count: int) -> None:
    """Four pairs cost 1 s per side: six more are 1.5 s, and pairs come by twos."""
    alarm = found(Verdict.UNDECIDED, Reason.UNCONFIRMED, pairs=4)
    wanted = more_pairs([alarm], {subject(): Spending(1.0, budget_s)})
    assert wanted == ({subject(): count} if count else {})
