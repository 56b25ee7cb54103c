"""Findings of an exploration: cases that are wrong, or slower than another implementation, by likely cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, isnan
from pathlib import Path
from typing import Any

import yaml

from opgauge.harness.case.case import Case
from opgauge.harness.explore.draw import values_of
from opgauge.harness.explore.shrink import complexity
from opgauge.harness.result.result import REFERENCE_FAILED, Result, Status
from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS, Row, is_coarse
from opgauge.ops import KernelNotFoundError, find_kernel

FOUND = "found"
"""Tag of the written cases."""
EXPECTED = {Status.OK, Status.UNSUPPORTED, Status.WRONG}
"""Statuses that a cause does not name."""
PLAIN = (bool, int, str)
"""Types that YAML writes as they are."""
SHARES = (("at most 1.02 of the fastest peer", 0.0, 1.02), ("above 1.10", 1.10, 1e9), ("above 1.5", 1.5, 1e9))
"""Reported ranges of the ratio to the fastest peer: label, above, up to."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Slowdown against another implementation: the judged one's time over that of `rival`, cold or hot."""

    ratio: float
    rival: str
    figure: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One wrong or slow case.

    case: the smallest that has the fault; first: as it was drawn. implementation: the one that has it. reason: why it
    is wrong, empty for a slow case. cause: likely common cause: op, kernels, parameters that differ from their
    defaults.
    """

    case: Case
    first: Case
    device: str
    implementation: str
    cause: tuple[str, ...]
    slowdown: Slowdown | None = None
    reason: str = ""

    @property
    def weight(self) -> float:
        """Sort key: wrong findings first, then by ratio."""
        return self.slowdown.ratio if self.slowdown else float("inf")


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one likely cause, the worst first."""

    cause: tuple[str, ...]
    findings: Sequence[Finding]

    @property
    def worst(self) -> Finding:
        """The finding with the largest weight."""
        return self.findings[0]


def judged(row: Row) -> list[str]:
    """The implementations to judge: `optimized`; without it, as in a project, all but baseline and peers, if any."""
    if OPTIMIZED in row.results:
        return [OPTIMIZED]
    return [name for name in row.results if name != BASELINE and name not in PEERS] or [BASELINE]


def slowdown(row: Row, rivals: Iterable[str] | None = None) -> Slowdown | None:
    """Time of the fastest judged implementation over the least of the other valid ones; None without both.

    Below 10 µs on a GPU these are hot times.
    """
    times = {name: time for name in judged(row) if (time := row.median_ns(name)) is not None}
    names = [name for name in rivals or _rivals(row) if name not in times]
    if not times:
        return None
    best = min(times, key=lambda name: times[name])
    own, coarse = times[best], is_coarse(times[best], row.device)
    hot = {name: time for name in names if (time := row.hot_ns(name)) is not None} if coarse else {}
    if hot and (own_hot := row.hot_ns(best)) is not None:
        rival = min(hot, key=lambda name: hot[name])
        return Slowdown(own_hot / hot[rival], rival, "hot")
    cold = {name: time for name in names if (time := row.median_ns(name)) is not None}
    if not cold:
        return None
    rival = min(cold, key=lambda name: cold[name])
    return Slowdown(own / cold[rival], rival, "cold")


def _rivals(row: Row) -> list[str]:
    """All other implementations except our own variants that compute with less precision than the dtype."""
    return [name for name, result in row.results.items() if name in PEERS or not _is_relaxed(result)]


def _is_relaxed(result: Result) -> bool:
    trial = result.trial
    try:
        return find_kernel(trial.case.op, trial.implementation, trial.backend, trial.case.dtype).relaxed > 1
    except KernelNotFoundError:
        return False


def failures(row: Row) -> dict[str, str]:
    """Why the result of each judged implementation is invalid, for those that are.

    Where the reference fails, which the op could refuse, no implementation is at fault: the first one stands for all.
    """
    results = [(name, row.results[name]) for name in judged(row) if name in row.results]
    unjudged = next(((name, one.reason) for name, one in results if one.reason.startswith(REFERENCE_FAILED)), None)
    if unjudged is not None:
        return dict([unjudged])
    return {
        name: f"{name} {'is wrong' if result.status is Status.WRONG else 'failed'}: {result.reason}"
        for name, result in results
        if result.status not in {Status.OK, Status.UNSUPPORTED}
    }


def cause_of(result: Result, case: Case) -> tuple[str, ...]:
    """Op, implementation unless `optimized`, how it failed unless it is wrong, kernels, parameters, optional inputs."""
    footprint = result.measurement.footprint if result.measurement is not None else None
    kernels = tuple(re.sub(r"<.*|\(.*", "", name).strip() for name in (footprint.kernels if footprint else None) or ())
    given = tuple(sorted(path.partition(".")[2] for path in values_of(case) if path.startswith("params.")))
    name = result.trial.implementation
    own = (*(() if name == OPTIMIZED else (name,)), *(() if result.status in EXPECTED else (str(result.status),)))
    return (case.op, *own, *(kernels or (("16-bit",) if "16" in case.dtype else ())), *given)


def group(findings: Iterable[Finding]) -> list[Group]:
    """Findings grouped by cause, the worst first, of wrong ones the simplest."""
    found: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted(findings, key=lambda item: (-item.weight, complexity(item.case))):
        found.setdefault(finding.cause, []).append(finding)
    return [Group(cause, members) for cause, members in found.items()]


def shares(rows: Sequence[Row]) -> dict[str, float]:
    """Shares of the rows with a peer by ratio to the fastest, and share slower than the baseline by over 2 %."""
    against = [found.ratio for row in rows if (found := slowdown(row, PEERS)) is not None]
    own = [found.ratio for row in rows if (found := slowdown(row, ("baseline",))) is not None]
    counted = {
        label: sum(above < ratio <= up_to for ratio in against) / len(against)
        for label, above, up_to in SHARES
        if against
    }
    if own:
        counted["slower than the baseline by over 2 %"] = sum(ratio > 1.02 for ratio in own) / len(own)
    return counted


def write_cases(path: Path, groups: Sequence[Group]) -> int:
    """Write the smallest case of every finding as a case file; returns their number.

    Without findings it has a comment alone: cases of an earlier exploration are none of this one.
    """
    by_op: dict[str, list[dict[str, Any]]] = {}
    seen: set[str] = set()
    for item in groups:
        for finding in item.findings:
            if finding.case.id not in seen:
                seen.add(finding.case.id)
                by_op.setdefault(finding.case.op, []).append(_entry(finding, len(seen)))
    documents = [{"op": op, "cases": entries} for op, entries in sorted(by_op.items())]
    text = yaml.safe_dump_all(documents, sort_keys=False, width=110) or "# nothing was found\n"
    path.write_text(text, encoding="utf-8")
    return len(seen)


def _entry(finding: Finding, number: int) -> dict[str, Any]:
    case = finding.case
    values = values_of(case)
    entry: dict[str, Any] = {
        "name": f"{FOUND}-{number}",
        "tags": [FOUND],
        "dtype": case.dtype,
        "shapes": {name: list(shape) for name, shape in case.shapes.items()},
        "note": _note(finding),
    }
    params = {path.partition(".")[2]: _yaml(value) for path, value in values.items() if path.startswith("params.")}
    if params:
        entry["params"] = params
    inputs: dict[str, dict[str, Any]] = {}
    for name, spec in case.inputs.items():
        inputs[name] = {key: _yaml(value) for key, value in vars(spec).items() if value not in (None, "contiguous")}
    if inputs:
        entry["inputs"] = inputs
    return entry


def _note(finding: Finding) -> str:
    if finding.slowdown is None:
        return f"{finding.device}: {finding.reason}"
    found = finding.slowdown
    return f"{finding.device}: {found.ratio:.3g} times {found.rival} ({found.figure})"


def _yaml(value: Any) -> Any:
    """A value as in a case file: a list becomes a list of one list, since a list alone is a sweep."""
    if isinstance(value, tuple):
        return [list(value)]
    if isinstance(value, float) and (isinf(value) or isnan(value)):
        return str(value)
    return value


def smaller(finding: Finding, result: Result, found: Slowdown | None, reason: str) -> Finding:
    """The finding with a smaller case that has the same fault; a wrong one has that case's cause."""
    case = result.trial.case
    cause = cause_of(result, case) if reason else finding.cause
    return replace(finding, case=case, cause=cause, slowdown=found, reason=reason)


def kind(reason: str) -> str:
    """Implementation and status of a reason, without its values."""
    return reason.partition(":")[0]


def same_fault(known: Finding, other: Finding) -> bool:
    """Whether a wrong case adds nothing to a known one: same op and fault, and nothing of the known cause is absent."""
    return (
        bool(known.reason)
        and (known.case.op, kind(known.reason)) == (other.case.op, kind(other.reason))
        and set(known.cause) <= set(other.cause)
    )


def as_json(groups: Sequence[Group], rows: Sequence[Row], further: Mapping[tuple[str, ...], int]) -> Mapping[str, Any]:
    """Groups and shares as plain JSON; `further` counts other cases by cause."""
    return {
        "cases": len(rows),
        "shares": shares(rows),
        "groups": [
            {
                "cause": list(item.cause),
                "further": further.get(item.cause, 0),
                "findings": [
                    {
                        "case_id": finding.case.id,
                        "values": {path: str(value) for path, value in values_of(finding.case).items()},
                        "ratio": finding.slowdown.ratio if finding.slowdown else None,
                        "rival": finding.slowdown.rival if finding.slowdown else None,
                        "reason": finding.reason,
                    }
                    for finding in item.findings
                ],
            }
            for item in groups
        ],
    }
