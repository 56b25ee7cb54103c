"""The verdict `same`, its margin, the compared statistic and the coarse run with all threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opgauge.harness.gate.policy import load_policy
from opgauge.harness.gate.record import BASE, COARSE, HEAD, BlockOutcome, Job, JobRecord, is_coarsely_slower
from opgauge.harness.gate.report import why
from opgauge.harness.judge.compare import compare
from opgauge.harness.judge.verdict import Evidence, Reason, Rule, Side, Subject, Verdict
from opgauge.harness.result.result import Measurement, Status

SUBJECT = Subject("op", "case", "0" * 16, "optimized", "cpu")
LOGS = np.random.default_rng(3).normal(0.0, 0.004, (10, 2))
PAIRS = tuple(map(tuple, (1e6 * np.exp(LOGS)).tolist()))
"""Equal code with noise of 0.4 %: a half width of about 0.6 %."""


def judged(
    same_within: float, *, slower_with_threads: bool = False, crowded: bool = False
) -> tuple[Verdict | None, Reason]:
    """Verdict and reason on equal code."""
    evidence = Evidence(SUBJECT, Side(), Side(), pairs=PAIRS, slower_with_threads=slower_with_threads, crowded=crowded)
    found = compare(evidence, Rule(same_within=same_within))
    return found.verdict, found.reason


def test_same_is_a_test_of_equivalence() -> None:
    """The same pairs are the same within 5 %, and undecided within 0.3 %, which the interval exceeds."""
    assert judged(0.05) == (Verdict.SAME, Reason.WITHIN)
    assert judged(0.003)[0] is Verdict.UNDECIDED


def test_the_report_states_the_margin() -> None:
    """The reason of `same` names the margin of the rule, not a fixed one."""
    for same_within, text in ((0.05, "within ±5 %"), (0.02, "within ±2 %")):
        found = compare(Evidence(SUBJECT, Side(), Side(), pairs=PAIRS), Rule(same_within=same_within))
        assert why(found).endswith(text)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", (0.01, 0.05)),
        ("threshold: 0.02", (0.02, 0.02)),
        ("same_within: 0.03", (0.01, 0.03)),
        ("threshold: 0.02, same_within: 0.04", (0.02, 0.04)),
    ],
)
def test_the_policy_sets_threshold_and_margin(tmp_path: Path, asked: str, expected: tuple[float, float]) -> None:
    """A threshold alone is the margin too; each key of its own sets that figure only."""
    file = tmp_path / "policy.yaml"
    file.write_text(f"defaults: {{{asked}}}\n")
    rule = load_policy(file).rule_of(SUBJECT)
    assert (rule.threshold, rule.same_within) == expected


def outcome(samples: tuple[float, ...]) -> BlockOutcome:
    """A process that measured these times."""
    return BlockOutcome(Status.OK, measurement=Measurement(samples, "test", 1))


@pytest.mark.parametrize(
    ("statistic", "expected"), [("median", (3.0, 3.0)), ("min", (1.0, 2.0)), ("p25", (2.0, 2.5)), ("p90", (4.6, 8.4))]
)
def test_the_policy_chooses_the_compared_statistic(
    tmp_path: Path, statistic: str, expected: tuple[float, float]
) -> None:
    """Sides with equal medians differ in their minimum and their quantiles, and the named one is compared."""
    file = tmp_path / "policy.yaml"
    file.write_text(f"defaults: {{statistic: {statistic}}}\n")
    chosen = load_policy(file).asked_of(SUBJECT).statistic
    assert chosen is not None
    record = JobRecord(Job(SUBJECT, {}, statistic=chosen))
    record.outcomes[BASE][0] = outcome((1.0, 2.0, 3.0, 4.0, 5.0))
    record.outcomes[HEAD][0] = outcome((2.0, 2.5, 3.0, 6.0, 10.0))
    (pair,) = record.pairs_ns()
    assert pair == pytest.approx(expected)


def test_a_slower_parallel_part_overrides_same() -> None:
    """All threads slower by a factor: slower; undecided where other processes used the CPUs meanwhile; never same."""
    assert judged(0.05, slower_with_threads=True) == (Verdict.SLOWER, Reason.THREADS)
    assert judged(0.05, slower_with_threads=True, crowded=True) == (Verdict.UNDECIDED, Reason.CORES_BUSY)


def test_the_coarse_run_needs_a_factor_in_every_process_pair() -> None:
    """Medians beyond the limit in all process pairs count; one pair within it, or no pair at all, does not."""
    record = JobRecord(Job(SUBJECT, {}))
    assert not is_coarsely_slower(record)
    record.coarse = [(2 * COARSE, 2 * COARSE, 0.0), (1.5 * COARSE,) * 3]
    assert is_coarsely_slower(record)
    record.coarse.append((0.5 * COARSE,) * 3)
    assert not is_coarsely_slower(record)
