"""Self-tests of the gate: the same code against itself, and a planted slowdown.

The outcome is a flat record of figures, with the cases, which the database stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import expm1, log
from statistics import median
from typing import Any

from opgauge.harness.gate.clock import Clock
from opgauge.harness.gate.evidence import median_of
from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.gate.plan import GatePlan
from opgauge.harness.gate.policy import NOTHING_ASKED, Policy
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import HEAD
from opgauge.harness.gate.run import Conditions, GateRun, gate
from opgauge.harness.gate.selection import Selection, plan
from opgauge.harness.judge.verdict import Comparison, Kind, Subject, Verdict
from opgauge.harness.trust.share import Share

FROM_US = (0.0, 10.0, 40.0)
"""Least times per call, in microseconds, for which the detected share is computed."""
WITHIN_S = (2.0, 10.0)
"""Limits of sampling per side, in seconds, for which the detected share is computed."""
Each = Callable[[GateRun], None]


def repeat(
    pool: WorkerPool, selection: Selection, conditions: Conditions, runs: int, each: Each = lambda _: None
) -> Iterator[GateRun]:
    """Repeat the same comparison; the trees are queried once."""
    laid: GatePlan = plan(pool, selection, conditions.policy)
    for _ in range(runs):
        run = gate(pool, selection, conditions, laid=laid)
        each(run)
        yield run


def always_broken(runs: Sequence[GateRun]) -> dict[Subject, Comparison]:
    """Kernels that were broken in every run: they fail by themselves, so no verdict on them is a finding."""
    broken = [{one.subject: one for one in run.found if one.verdict is Verdict.BROKEN} for run in runs]
    return {subject: one for subject, one in (broken[0] if broken else {}).items() if all(subject in o for o in broken)}


def _is_red(run: GateRun, left_out: Mapping[Subject, Comparison]) -> bool:
    """Whether the gate fails for a verdict on a kernel that is not left out."""
    if run.outcome.code not in {ExitCode.SLOWER, ExitCode.BROKEN}:
        return False
    own = {one.verdict for one in run.found if one.subject in left_out}
    others = {one.verdict for one in run.found if one.subject not in left_out}
    return not own or bool(others & {Verdict.SLOWER, Verdict.BROKEN})


def false_alarms(runs: Sequence[GateRun], seconds: float | None = None) -> dict[str, Any]:
    """Verdicts on the same code against itself. `red`: runs that failed for a verdict that cannot be true.

    Kernels that are broken in every run are left out. seconds: wall time of all of it; None: of the runs alone.
    """
    left_out = always_broken(runs)
    found = [one for run in runs for one in run.found if one.kind is Kind.COMPARED and one.subject not in left_out]
    verdicts = Counter(one.verdict for one in found)
    red = Share(sum(_is_red(run, left_out) for run in runs), len(runs))
    alarms = Share(verdicts[Verdict.SLOWER] + verdicts[Verdict.FASTER], len(found))
    undecided = Share(verdicts[Verdict.UNDECIDED], len(found))
    return {
        "runs": len(runs),
        "cases_per_run": len(runs[0].found) if runs else 0,
        "decisions": len(found),
        "red": red.count,
        **_counted(verdicts),
        **_share("false_alarm", alarms),
        **_share("red_run", red),
        **_share("undecided", undecided),
        **_cost(runs, seconds),
        "cases": [_case(subject, seen) for subject, seen in _by_subject(found).items()],
    }


def caught(runs: Sequence[GateRun], slowdown: float, seconds: float | None = None) -> dict[str, Any]:
    """Number of planted slowdowns that were called slower, and their cost; otherwise as false_alarms."""
    left_out = always_broken(runs)
    compared = [(run, one) for run in runs for one in run.found if one.kind is Kind.COMPARED]
    found = [(run, one) for run, one in compared if one.subject not in left_out]
    verdicts = Counter(one.verdict for _, one in found)
    cases = []
    for subject, seen in _by_subject([one for _, one in found]).items():
        times = [run.records[subject].sampling_s for run, one in found if one.subject == subject]
        cases.append({**_case(subject, seen), "s_per_side": median(times)})
    return {
        "slowdown": slowdown,
        "runs": len(runs),
        "among": runs[0].conditions.among if runs else 0,
        "decisions": len(found),
        **_counted(verdicts),
        **_caught_shares(found),
        **_cost(runs, seconds),
        "cases": cases,
    }


def _caught_shares(found: Sequence[tuple[GateRun, Comparison]]) -> dict[str, Any]:
    """Detected shares: of all cases and of cases above a time per call, at any cost and within seconds per side."""
    facts: dict[str, Any] = {}
    for least_us in FROM_US:
        some = [(run, one) for run, one in found if _time_us(run, one) >= least_us]
        took = [run.records[one.subject].sampling_s for run, one in some if one.verdict is Verdict.SLOWER]
        name = f"caught_from_{least_us:g}_us" if least_us else "caught"
        facts |= _share(name, Share(len(took), len(some)))
        for limit_s in WITHIN_S:
            inside = sum(spent <= limit_s for spent in took)
            facts |= _share(f"{name}_within_{limit_s:g}_s", Share(inside, len(some)))
        if took and not least_us:
            facts |= {"median_s_per_side_until_caught": median(took), "most_s_per_side_until_caught": max(took)}
    return facts


def out_of_reach(laid: GatePlan, policy: Policy, slowdown: float) -> list[Subject]:
    """Cases whose threshold is at least the slowdown: by the policy it does not count, and cannot be detected."""
    return [
        job.subject
        for job in laid.jobs
        if job.is_paired and policy.rule_of(job.subject, laid.own.get(job.subject, NOTHING_ASKED)).threshold >= slowdown
    ]


def by_time_alone(conditions: Conditions, among: int) -> Conditions:
    """Conditions under which only times count: a planted launch must not be detected by counting launches."""
    return replace(conditions, policy=replace(conditions.policy, exact=()), waivers=(), among=among, profile=False)


def _time_us(run: GateRun, found: Comparison) -> float:
    return (median_of(run.records[found.subject], HEAD) or 0.0) / 1e3


def _by_subject(found: Sequence[Comparison]) -> dict[Subject, list[Comparison]]:
    seen: dict[Subject, list[Comparison]] = {}
    for one in found:
        seen.setdefault(one.subject, []).append(one)
    return seen


def _case(subject: Subject, seen: Sequence[Comparison]) -> dict[str, Any]:
    ratios = [one.ratio for one in seen if one.ratio is not None]
    sees = [one.detectable_change for one in seen if one.detectable_change is not None]
    return {
        "case": subject.path,
        "case_id": subject.case_id,
        "implementation": subject.implementation,
        "device": subject.device,
        **{str(verdict): count for verdict, count in Counter(one.verdict for one in seen).items()},
        "ratio": median(ratios) if ratios else None,
        "noise_floor": _noise_floor(ratios),
        "detectable_change": median(sees) if sees else None,
        "pairs": median(one.pairs for one in seen),
    }


def _noise_floor(ratios: Sequence[float]) -> float | None:
    """The 95th percentile of changes between runs of the same code."""
    if not ratios:
        return None
    return expm1(sorted(abs(log(ratio)) for ratio in ratios)[int(0.95 * (len(ratios) - 1))])


def _counted(verdicts: Mapping[Verdict | None, int]) -> dict[str, int]:
    return {str(verdict): verdicts.get(verdict, 0) for verdict in Verdict}


def _share(name: str, share: Share) -> dict[str, Any]:
    bounds = {"share": share.value, "low": share.low, "high": share.high, "total": share.total}
    return {f"{name}_{part}": value for part, value in bounds.items()}


def _cost(runs: Sequence[GateRun], seconds: float | None) -> dict[str, Any]:
    """Wall time, and the share of warm-up and sampling in it."""
    wall = sum(run.seconds for run in runs) if seconds is None else seconds
    clock = Clock()
    for run in runs:
        clock.blocks_s += run.clock.blocks_s
        clock.add_outside(run.clock.outside_s)
        clock.add(run.clock.phases_s)
    return {
        "seconds": round(wall, 1),
        "measuring_share": clock.measuring_s / wall if wall else 0.0,
        "spent_s": {name: round(spent, 2) for name, spent in clock.spent_s(wall).items()},
    }
